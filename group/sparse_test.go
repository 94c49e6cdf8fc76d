// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/tensor"
)

func sparse[T tensor.Element](shape []int, index []int64, values ...T) *tensor.Sparse {
	n := 1
	for _, d := range shape[1:] {
		n *= d
	}
	return &tensor.Sparse{
		Shape: shape, Indices: tensor.Must(tensor.From(index, 1, len(index))),
		Values: tensor.Must(tensor.From(values, append([]int{len(values) / n}, shape[1:]...)...)),
	}
}

// TestSparseSums: the sum is that of the dense tensors, whatever each rank has, also nothing, and indices more than once.
func TestSparseSums(t *testing.T) {
	const rows, width, rounds = 6, 3, 25
	for _, transport := range transports {
		for _, size := range []int{1, 2, 3} {
			if size == 1 && transport == Gloo {
				continue
			}
			t.Run(fmt.Sprint(transport, "/", size), func(t *testing.T) {
				groups := newWorld(t, size, WithTransport(transport))
				ctx := ctxOf(t)
				must(t, each(size, func(r int) error {
					rng := rand.New(rand.NewPCG(1, 1)) // the same on all ranks
					for round := range rounds {
						parts := make([]*tensor.Sparse, size)
						sum := tensor.Must(tensor.New(tensor.Int64, rows, width))
						for i := range parts {
							n := rng.IntN(6) * rng.IntN(2)
							index, values := make([]int64, n), make([]int64, n*width)
							for k := range index {
								index[k] = rng.Int64N(rows)
							}
							for k := range values {
								values[k] = rng.Int64N(100)
							}
							parts[i] = sparse([]int{rows, width}, index, values...)
							if err := sparseops.AddInto(sum, parts[i]); err != nil {
								return err
							}
						}
						s := parts[r]
						if err := groups[r].AllReduceSparse(ctx, s, Sum).Wait(ctx); err != nil {
							return err
						}
						got, err := sparseops.Dense(s)
						if err != nil {
							return err
						}
						if whole, err := sparseops.Coalesce(s); err != nil || whole != s || !tensor.Equal(got, sum) {
							return fmt.Errorf("round %d: %v, want %v, coalesced (%w)", round, s, sum, err)
						}
					}
					return nil
				}))
			})
		}
	}
}

// after runs f once, when an engine has run so many requests.
type after struct {
	collective.Engine

	left int
	f    func()
}

func (a *after) Run(ctx context.Context, r *collective.Request) error {
	if a.left == 0 {
		a.f()
	}
	a.left--
	return a.Engine.Run(ctx, r)
}

// TestSparseDeath: a rank that dies between two exchanges of a sum ends it on all others, and they name it.
func TestSparseDeath(t *testing.T) {
	for stage := range 3 {
		t.Run(strconv.Itoa(stage), func(t *testing.T) {
			groups := newWorld(t, 3, WithTransport(TCP))
			groups[1].engine = &after{groups[1].engine, stage, func() { vanish(t, groups[1]) }}
			ctx := ctxOf(t)
			_ = each(3, func(r int) error {
				s := sparse([]int{4}, []int64{int64(r)}, 1.0)
				err := groups[r].AllReduceSparse(ctx, s, Sum).Wait(ctx)
				if e := asError(err); r != 1 && (e == nil || e.Code != cohort.PeerLost || e.Rank != 1) {
					t.Errorf("rank %d: %v", r, err)
				}
				return nil
			})
		})
	}
}

// TestSparseAbort: a caller who gives up between two exchanges ends the group, on all ranks, and the tensor stays as it was.
func TestSparseAbort(t *testing.T) {
	for _, transport := range transports {
		for stage := 1; stage < 3; stage++ {
			t.Run(fmt.Sprint(transport, "/", stage), func(t *testing.T) {
				groups := newWorld(t, 2, WithTransport(transport))
				ctx := ctxOf(t)
				works := make(chan *Work, 1)
				groups[0].engine = &after{groups[0].engine, stage, func() { (<-works).Abort() }}
				must(t, each(2, func(r int) error {
					s := sparse([]int{4}, []int64{2, 2}, 1.0, 2.0)
					before := s.Values
					w := groups[r].AllReduceSparse(ctx, s, Sum)
					if r == 0 {
						works <- w
					}
					if err := w.Wait(ctx); !errors.Is(err, cohort.Aborted) && !errors.Is(err, cohort.PeerLost) {
						return fmt.Errorf("the sum ended with %w", err)
					}
					if s.Values != before {
						return errors.New("the tensor has changed")
					}
					return nil
				}))
			})
		}
	}
}

// TestSparseWaitEnds: the end of a wait ends the wait and nothing else, and the operation can be waited for again.
func TestSparseWaitEnds(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 2, WithTransport(transport))
			ctx := ctxOf(t)
			s, other := sparse([]int{4}, []int64{1}, 1.0), sparse([]int{4}, []int64{3}, 2.0)
			w := groups[0].AllReduceSparse(ctx, s, Sum)
			soon, cancel := context.WithCancel(ctx)
			cancel()
			if err := w.Wait(soon); !errors.Is(err, context.Canceled) || w.Completed() {
				t.Fatalf("%v, completed %v", err, w.Completed())
			}
			must(t, groups[1].AllReduceSparse(ctx, other, Sum).Wait(ctx))
			must(t, w.Wait(ctx))
			if got := values[int64](t, s.Indices); !slices.Equal(got, []int64{1, 3}) {
				t.Errorf("indices %v", got)
			}
		})
	}
}

// TestSparseRecord: the flight recorder tells the operation apart, as PyTorch's does.
func TestSparseRecord(t *testing.T) {
	groups := newWorld(t, 2, WithTransport(TCP))
	ctx := ctxOf(t)
	must(t, each(2, func(r int) error {
		return groups[r].AllReduceSparse(ctx, sparse([]int{4}, []int64{1}, float32(1)), Sum).Wait(ctx)
	}))
	dump, err := groups[0].Trace()
	must(t, err)
	for _, part := range []string{`"sparse_all_reduce"`, `"sum"`, `"float32"`} {
		if !strings.Contains(string(dump), part) {
			t.Errorf("the dump does not say %s:\n%s", part, dump)
		}
	}
}
