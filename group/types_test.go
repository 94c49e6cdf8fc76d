// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// TestTypesThatGroupsDoNotCarry refuses the element types that only messages of RPC have, before anything is sent: the
// group goes on.
func TestTypesThatGroupsDoNotCarry(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 2, WithTransport(transport))
			ctx := context.Background()
			for _, dt := range []tensor.DType{tensor.Complex32, tensor.Float8E4M3FN, tensor.Uint16, tensor.Uint32, tensor.Uint64} {
				x := tensor.Must(tensor.New(dt, 4))
				for name, w := range map[string]*Work{
					"broadcast": groups[0].Broadcast(ctx, x, 0), "all_reduce": groups[0].AllReduce(ctx, x, Sum),
					"send": groups[0].Send(ctx, x, 1, 0),
				} {
					if err := w.Wait(ctx); !errors.Is(err, cohort.NotSupported) {
						t.Errorf("%s of %v: %v", name, dt, err)
					}
				}
			}
			must(t, each(2, func(r int) error { return groups[r].AllReduce(ctx, from(float32(r)), Sum).Wait(ctx) }))
		})
	}
}

// TestAverageOfComplexNumbers: Go ranks among themselves average complex numbers in every operation that reduces.
func TestAverageOfComplexNumbers(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 2, WithTransport(transport), WithPeers(OnlyGo))
			ctx := ctxOf(t)
			want := complex(0.5, 1)
			must(t, each(2, func(r int) error {
				g, v := groups[r], complex(float64(r), float64(2*r))
				all, one, flat, list, coalesced := from(v), from(v), from(complex128(0)), from(complex128(0)), from(v)
				scope := from(complex64(0))
				err := WaitAll(ctx,
					g.AllReduce(ctx, all, Avg), g.Reduce(ctx, one, Avg, 0), g.ReduceScatterInto(ctx, flat, from(v, v), Avg),
					g.ReduceScatter(ctx, list, []*tensor.Tensor{from(v), from(v)}, Avg),
					g.AllReduceCoalesced(ctx, []*tensor.Tensor{coalesced}, Avg),
					g.ReduceScatterIntoCoalesced(ctx, []*tensor.Tensor{scope}, []*tensor.Tensor{from(complex64(v), complex64(v))}, Avg))
				for i, x := range []*tensor.Tensor{all, one, flat, list, coalesced} {
					if got := values[complex128](t, x)[0]; got != want && (i != 1 || r == 0) {
						t.Errorf("rank %d, operation %d: %v, want %v", r, i, got, want)
					}
				}
				if got := values[complex64](t, scope)[0]; got != complex64(want) {
					t.Errorf("rank %d, coalesced: %v, want %v", r, got, want)
				}
				return err
			}))
		})
	}
}

// TestSumOfBooleans: the sum of booleans is a boolean again, whose byte is 0 or 1.
func TestSumOfBooleans(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 2, WithTransport(transport), WithPeers(OnlyGo))
			ctx := ctxOf(t)
			must(t, each(2, func(r int) error {
				g := groups[r]
				all, one, flat, listed := from(true, false), from(true, false), from(false), from(false)
				err := WaitAll(ctx, g.AllReduce(ctx, all, Sum), g.Reduce(ctx, one, Sum, 0),
					g.ReduceScatterInto(ctx, flat, from(true, true), Sum),
					g.ReduceScatter(ctx, listed, []*tensor.Tensor{from(true), from(true)}, Sum))
				for i, x := range []*tensor.Tensor{all, one, flat, listed} {
					if b, failed := x.Bytes(); failed != nil || b[0] != 1 {
						t.Errorf("rank %d, operation %d: %v %v", r, i, b, failed)
					}
				}
				return err
			}))
		})
	}
}
