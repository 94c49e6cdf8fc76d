// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// TestMinMaxWithNaN: whether NaN or a number comes out where a rank has NaN depends on the transport, but all ranks get the same, and it is
// what one of them had. Where no rank has NaN it is the least or the greatest.
func TestMinMaxWithNaN(t *testing.T) {
	for _, transport := range transports {
		for _, size := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s,ranks=%d", transport, size), func(t *testing.T) {
				groups := newWorld(t, size, WithTransport(transport))
				for _, n := range []int{7, 50_000} {
					minMaxWithNaN(t, groups, Min, n)
					minMaxWithNaN(t, groups, Max, n)
				}
			})
		}
	}
}

func minMaxWithNaN(t *testing.T, groups []*Group, op ReduceOp, n int) {
	t.Helper()
	ctx := ctxOf(t)
	ins, outs := make([][]float32, len(groups)), make([][]float32, len(groups))
	for r := range ins {
		for i := range n {
			v := float32((i*7919 + r*31) % 1009)
			if i%3 == 0 && (i/3+r)%len(groups) == 0 {
				v = float32(math.NaN())
			}
			ins[r] = append(ins[r], v)
		}
		outs[r] = slices.Clone(ins[r])
	}
	must(t, each(len(groups), func(r int) error { return AllReduceSlice(ctx, groups[r], outs[r], op) }))
	for i := range n {
		var had []uint32
		best := ins[0][i]
		for r := range ins {
			had = append(had, math.Float32bits(ins[r][i]))
			if op == Min { // NaN if one of them is
				best = min(best, ins[r][i])
			} else {
				best = max(best, ins[r][i])
			}
		}
		for r := range outs {
			got := math.Float32bits(outs[r][i])
			if got != math.Float32bits(outs[0][i]) || !slices.Contains(had, got) || !math.IsNaN(float64(best)) && outs[r][i] != best {
				t.Fatalf("%v of %v at %d of %d: rank %d has %v, rank 0 has %v", op, had, i, n, r, outs[r][i], outs[0][i])
			}
		}
	}
}

// TestPremulSum multiplies by a factor per rank in every reduction, and leaves other buffers unchanged.
func TestPremulSum(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			groups := newWorld(t, 3, WithTransport(transport))
			must(t, each(3, func(r int) error {
				g, f := groups[r], WithFactor([]float64{0.5, 2, -1}[r])
				v := float32(r + 1) // 0.5*1 + 2*2 - 3 = 1.5
				x := from(v, 2*v)
				if err := errors.Join(g.AllReduce(ctx, x, PremulSum, f).Wait(ctx), same[float32]("all_reduce", x, 1.5, 3)); err != nil {
					return err
				}
				grid := tensor.Must(tensor.From([]float32{v, 9, v, 9}, 2, 2))
				column := tensor.Must(grid.Select(1, 0))
				if err := errors.Join(g.AllReduce(ctx, column, PremulSum, f).Wait(ctx),
					same[float32]("column", grid, 1.5, 9, 1.5, 9)); err != nil {
					return err
				}
				x = from(v)
				want := v
				if r == 1 {
					want = 1.5
				}
				if err := errors.Join(g.Reduce(ctx, x, PremulSum, 1, f).Wait(ctx), same("reduce", x, want)); err != nil {
					return err
				}
				in, out := from(v, 2*v, 4*v), from[float32](0)
				err := errors.Join(g.ReduceScatterInto(ctx, out, in, PremulSum, f).Wait(ctx),
					same("into", out, []float32{1.5, 3, 6}[r]), same("input", in, v, 2*v, 4*v))
				if err != nil {
					return err
				}
				ins := []*tensor.Tensor{from(v), from(2 * v), from(4 * v)}
				err = errors.Join(g.ReduceScatter(ctx, out, ins, PremulSum, f).Wait(ctx),
					same("list", out, []float32{1.5, 3, 6}[r]), same("input", ins[2], 4*v))
				if err != nil {
					return err
				}
				a, b := from(float64(v)), from(float64(v), 0)
				err = g.Coalesce(ctx, func(c *Coalescer) {
					c.AllReduce(a, PremulSum)
					c.AllReduce(b, PremulSum)
				}, f).Wait(ctx)
				if err = errors.Join(err, same("a", a, 1.5), same("b", b, 1.5, 0)); err != nil {
					return err
				}
				return errors.Join(g.Coalesce(ctx, func(c *Coalescer) { c.ReduceScatterInto(out, in, PremulSum) }, f).Wait(ctx),
					same("scope", out, []float32{1.5, 3, 6}[r]), same("input", in, v, 2*v, 4*v))
			}))
		})
	}
}

// TestPremulSumArguments: nothing is changed by a call that is refused.
func TestPremulSumArguments(t *testing.T) {
	ctx := ctxOf(t)
	g := newWorld(t, 2)[0]
	over, cancel := context.WithCancel(ctx)
	cancel()
	x := from[float32](3)
	for i, w := range []*Work{
		g.AllReduce(ctx, x, PremulSum), g.AllReduce(ctx, x, Sum, WithFactor(2)), g.AllReduce(ctx, from[int64](3), PremulSum, WithFactor(2)),
		g.Reduce(ctx, x, PremulSum, 0), g.ReduceScatterInto(ctx, x, from[float32](1, 2), PremulSum),
		g.AllReduceCoalesced(ctx, []*tensor.Tensor{x}, PremulSum),
	} {
		if err := w.Wait(ctx); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if err := g.AllReduce(over, x, PremulSum, WithFactor(2)).Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, same[float32]("x", x, 3))
	if got := fmt.Sprint(PremulSum); got != "premul_sum" {
		t.Error(got)
	}
}

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
