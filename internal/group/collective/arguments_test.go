// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

func zeros(dt tensor.DType, shape ...int) *tensor.Tensor {
	return tensor.Must(tensor.New(dt, shape...))
}

// column is a tensor of n elements that is not contiguous.
func column(dt tensor.DType, n int) *tensor.Tensor {
	return tensor.Must(zeros(dt, n, 2).Select(1, 0))
}

// list is a tensor for every rank, all of n elements, or of n to n+size-1.
func list(dt tensor.DType, size, n int, uneven bool) []*tensor.Tensor {
	all := make([]*tensor.Tensor, size)
	for i := range all {
		all[i] = zeros(dt, n)
		if uneven {
			all[i] = zeros(dt, n+i)
		}
	}
	return all
}

// calls fills a Call with every operation, with arguments that fit.
func calls(g *Group, dt tensor.DType, make1 func(tensor.DType, int) *tensor.Tensor, uneven bool) map[string]func(c *Call) error {
	const n = 3
	part := n
	if uneven {
		part = n + int(g.Rank)
	}
	atRoot := func(ts []*tensor.Tensor) []*tensor.Tensor {
		if g.Rank == 0 {
			return ts
		}
		return nil
	}
	lists := make([][]*tensor.Tensor, g.Size)
	for i := range lists {
		lists[i] = []*tensor.Tensor{zeros(dt, n), zeros(dt, 1)}
	}
	splits := slices.Repeat([]int{1}, g.Size)
	return map[string]func(c *Call) error{
		"all_reduce":           func(c *Call) error { return g.AllReduce(c, make1(dt, n), reduce.Sum) },
		"all_reduce_coalesced": func(c *Call) error { return g.AllReduceCoalesced(c, lists[0], reduce.Sum) },
		"broadcast":            func(c *Call) error { return g.Broadcast(c, make1(dt, n), 0) },
		"broadcast_coalesced":  func(c *Call) error { return g.BroadcastCoalesced(c, lists[0], 0) },
		"reduce":               func(c *Call) error { return g.Reduce(c, make1(dt, n), reduce.Sum, 0) },
		"all_gather":           func(c *Call) error { return g.AllGather(c, list(dt, g.Size, n, uneven), make1(dt, part)) },
		"all_gather_into": func(c *Call) error {
			return g.AllGatherInto(c, torchcaps.AllGatherInto, make1(dt, n*g.Size), make1(dt, n))
		},
		"all_gather_coalesced": func(c *Call) error { return g.AllGatherCoalesced(c, lists, lists[0]) },
		"all_gather_into_coalesced": func(c *Call) error {
			return g.AllGatherIntoCoalesced(c, []*tensor.Tensor{zeros(dt, n*g.Size), zeros(dt, g.Size)}, lists[0])
		},
		"gather":  func(c *Call) error { return g.Gather(c, atRoot(list(dt, g.Size, n, uneven)), make1(dt, part), 0) },
		"scatter": func(c *Call) error { return g.Scatter(c, make1(dt, part), atRoot(list(dt, g.Size, n, uneven)), 0) },
		"reduce_scatter": func(c *Call) error {
			return g.ReduceScatter(c, make1(dt, part), list(dt, g.Size, n, uneven), reduce.Sum)
		},
		"reduce_scatter_into": func(c *Call) error { return g.ReduceScatterInto(c, make1(dt, n), make1(dt, n*g.Size), reduce.Sum) },
		"reduce_scatter_into_coalesced": func(c *Call) error {
			return g.ReduceScatterIntoCoalesced(c, lists[0], []*tensor.Tensor{zeros(dt, n*g.Size), zeros(dt, g.Size)}, reduce.Sum)
		},
		"all_to_all":             func(c *Call) error { return g.AllToAll(c, list(dt, g.Size, n, false), list(dt, g.Size, n, false)) },
		"all_to_all_into":        func(c *Call) error { return g.AllToAllInto(c, make1(dt, g.Size), make1(dt, g.Size), nil, nil) },
		"all_to_all_into_splits": func(c *Call) error { return g.AllToAllInto(c, make1(dt, g.Size), make1(dt, g.Size), splits, nil) },
		"barrier":                func(c *Call) error { g.Barrier(c); return nil },
	}
}

// TestRequestsFit: whatever is accepted is a request that the engines accept, and its results can be put where they belong.
func TestRequestsFit(t *testing.T) {
	t.Parallel()
	var c Call // used again and again, as a Work is
	for size := 1; size <= 4; size++ {
		for rank := range size {
			for _, peers := range []torchcaps.Peers{{}, torchcaps.Exactly(torchcaps.V2_14)} {
				for _, uneven := range []bool{false, peers.None()} {
					for _, strided := range []bool{false, true} {
						g := &Group{Rank: cohort.Rank(rank), Size: size, Peers: peers}
						make1 := func(dt tensor.DType, n int) *tensor.Tensor { return zeros(dt, n) }
						if strided {
							make1 = column
						}
						for name, fill := range calls(g, tensor.Float32, make1, uneven) {
							c.Reset()
							c.Request.Uneven = uneven
							if err := fill(&c); err != nil {
								t.Errorf("%s, rank %d of %d, %v: %v", name, rank, size, peers, err)
								continue
							}
							if err := c.Request.Check("", rank, size); err != nil {
								t.Errorf("%s, rank %d of %d, %v: %v", name, rank, size, peers, err)
							}
							for _, p := range c.Pieces {
								r := c.Request
								if r.In, r.Out = p.In, p.Out; r.Check("", rank, size) != nil {
									t.Errorf("%s, rank %d of %d, %v: a piece: %v", name, rank, size, peers, r.Check("", rank, size))
								}
							}
							if len(c.Pieces) != 0 && len(c.Pieces) != int(c.Numbers()) {
								t.Errorf("%s: %d pieces take %d numbers", name, len(c.Pieces), c.Numbers())
							}
							if c.Finish != nil && c.Finish() != nil {
								t.Errorf("%s, rank %d of %d: %v", name, rank, size, c.Finish())
							}
						}
					}
				}
			}
		}
	}
}

// TestWhatPyTorchRefuses: a refusal says how this rank stays in step with the PyTorch ranks.
func TestWhatPyTorchRefuses(t *testing.T) {
	t.Parallel()
	old := &Group{Rank: 0, Size: 2, Peers: torchcaps.Exactly(torchcaps.V2_6)}
	x := zeros(tensor.Float32, 2)
	for name, c := range map[string]struct {
		err     error
		where   torchcaps.Where
		numbers uint32
	}{
		"average":        {old.AllReduce(new(Call), x, reduce.Avg), torchcaps.AtTheWait, 1},
		"uneven gather":  {old.Gather(new(Call), list(tensor.Float32, 2, 2, true), x, 0), torchcaps.Nowhere, 0},
		"uneven gathers": {old.AllGather(new(Call), list(tensor.Float32, 2, 2, true), x), torchcaps.AtTheCall, 0},
	} {
		r, ok := errors.AsType[*Refusal](c.err)
		if !ok || r.Where != c.where || r.Numbers() != c.numbers || !errors.Is(c.err, cohort.NotSupported) {
			t.Errorf("%s: %v (%+v)", name, c.err, r)
		}
	}
	// What no rank can do is an error of the caller's, and nothing is taken for it.
	g := &Group{Rank: 1, Size: 2}
	for name, err := range map[string]error{
		"no tensor":        g.AllReduce(new(Call), nil, reduce.Sum),
		"zero tensor":      g.AllReduce(new(Call), new(tensor.Tensor), reduce.Sum),
		"no such operator": g.AllReduce(new(Call), x, 77),
		"no such root":     g.Broadcast(new(Call), x, 2),
		"splits":           g.AllToAllInto(new(Call), x, x, []int{3, -1}, nil),
		"outputs":          g.Gather(new(Call), list(tensor.Float32, 2, 2, false), x, 0),
		"types":            g.AllGatherInto(new(Call), torchcaps.AllGatherInto, zeros(tensor.Int64, 4), x),
		"factor":           g.AllReduce(&Call{Factor: Factor{2, true}}, x, reduce.Sum),
	} {
		if _, refused := errors.AsType[*Refusal](err); refused || !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSpan: tensors that stand one behind the other in one memory are used in place.
func TestSpan(t *testing.T) {
	t.Parallel()
	all := zeros(tensor.Float32, 3, 5)
	rows := []*tensor.Tensor{tensor.Must(all.Select(0, 0)), tensor.Must(all.Select(0, 1)), tensor.Must(all.Select(0, 2))}
	if n := len(span(rows)); n != 4*15 {
		t.Errorf("%d bytes", n)
	}
	if span([]*tensor.Tensor{rows[0], rows[2]}) != nil || span([]*tensor.Tensor{rows[0], zeros(tensor.Float32, 5)}) != nil {
		t.Error("tensors that do not stand one behind the other")
	}
}

// TestBuckets: one list for each element type is open at a time, and lists are in the order of their first tensors.
func TestBuckets(t *testing.T) {
	t.Parallel()
	ts := []*tensor.Tensor{
		zeros(tensor.Int64, 2), zeros(tensor.Float32, 1), zeros(tensor.Int64, 1), zeros(tensor.Int64, 3),
		zeros(tensor.Float32, 1),
	}
	var got [][]int
	for _, l := range Buckets(ts, 24) {
		var at []int
		for _, x := range l {
			at = append(at, slices.Index(ts, x))
		}
		got = append(got, at)
	}
	if want := "[[0 2] [1 4] [3]]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestCheckedCoalesced: what 2.14 performs under DETAIL is refused as versions up to 2.11 refuse it, or asked about,
// for every pair of versions. What 2.12 and 2.13 do with it is not the same for all operations.
func TestCheckedCoalesced(t *testing.T) {
	t.Parallel()
	for low := torchcaps.V1_13; low <= torchcaps.Newest; low++ {
		for high := low; high <= torchcaps.Newest; high++ {
			g := &Group{Checked: true, Peers: torchcaps.Peers{Low: low, High: high}}
			err := g.checkedCoalesced("x", torchcaps.ReduceScatterIntoCoalesced)
			var r *Refusal
			switch asked := err != nil && strings.Contains(err.Error(), torchcaps.Option); {
			case low >= torchcaps.V2_14 && err != nil,
				low < torchcaps.V2_14 && !errors.As(err, &r),
				high < torchcaps.V2_12 && (asked || r.Where != torchcaps.InPython),
				low < torchcaps.V2_14 && high >= torchcaps.V2_12 && (!asked || r.Where != torchcaps.Nowhere):
				t.Errorf("%v: %v", g.Peers, err)
			}
		}
	}
}
