// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

func broadcastOf[T tensor.Element](ctx context.Context, g *group.Group, v T) error {
	for root, global := range g.GlobalRanks() {
		var zero T
		x := cube(int(global+1), zero)
		if cohort.Rank(root) == g.Rank() {
			x = cube(int(global+1), v)
		}
		if err := g.Broadcast(ctx, x, cohort.Rank(root)).Wait(ctx); err != nil {
			return err
		}
		if err := wantAll(fmt.Sprint(x.DType(), " from ", root), x, v, int(global+1), int(global+1), int(global+1)); err != nil {
			return err
		}
	}
	return nil
}

func TestBroadcast(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		return errors.Join(
			broadcastOf(ctx, g, float32(-1e-10)), broadcastOf(ctx, g, -1e-100), broadcastOf(ctx, g, tensor.ToF16(-0.1)),
			broadcastOf(ctx, g, int8(-2)), broadcastOf(ctx, g, uint8(129)), broadcastOf(ctx, g, int32(-1e5)),
			broadcastOf(ctx, g, int64(-1e15)))
	})
}

// operatorCase is a reduction in which one rank has the value master and the others have worker.
type operatorCase struct {
	op                   group.ReduceOp
	master, worker, want float32
}

func operatorCases(size int) []operatorCase {
	product := float32(2)
	for range size - 1 {
		product *= 10
	}
	return []operatorCase{
		{group.Sum, 2, 10, float32(2 + 10*(size-1))},
		{group.Product, 2, 10, product},
		{group.Min, 1010, 1, 1},
		{group.Max, -1, 10, 10},
	}
}

func (c operatorCase) value(mine bool) float32 {
	if mine {
		return c.master
	}
	return c.worker
}

func TestReduce(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		for _, c := range operatorCases(g.Size()) {
			for root, global := range g.GlobalRanks() {
				// Two in a row, as test_reduce_sum_twice.
				x, y := cube(int(global+1), c.value(cohort.Rank(root) == g.Rank())),
					cube(int(global+1), c.value(cohort.Rank(root) == g.Rank()))
				if err := group.WaitAll(ctx, g.Reduce(ctx, x, c.op, cohort.Rank(root)),
					g.Reduce(ctx, y, c.op, cohort.Rank(root))); err != nil {
					return err
				}
				if cohort.Rank(root) != g.Rank() {
					continue
				}
				if err := errors.Join(wantAll(c.op.String(), x, c.want), wantAll(c.op.String()+" again", y, c.want)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestAllReduce(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		for _, c := range operatorCases(g.Size()) {
			for root, global := range g.GlobalRanks() {
				x := cube(int(global+1), c.value(cohort.Rank(root) == g.Rank()))
				w := g.AllReduce(ctx, x, c.op)
				if err := w.Wait(ctx); err != nil || !w.Success() {
					return fmt.Errorf("success %v, %w", w.Success(), err)
				}
				if err := wantAll(c.op.String(), x, c.want); err != nil {
					return err
				}
			}
		}
		for root, global := range g.GlobalRanks() {
			x := cube(int(global+1), complex64(10+11i))
			if cohort.Rank(root) == g.Rank() {
				x = cube(int(global+1), complex64(2+3i))
			}
			if err := g.AllReduce(ctx, x, group.Sum).Wait(ctx); err != nil {
				return err
			}
			if err := wantAll("complex sum", x, 2+3i+complex(float32(g.Size()-1), 0)*complex64(10+11i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// coalescedCases are two reductions each, whose results tell one tensor's values from the other's.
func coalescedCases(size int) [][2]operatorCase {
	power := func(first, base float32) float32 {
		for range size - 1 {
			first *= base
		}
		return first
	}
	others := float32(size - 1)
	return [][2]operatorCase{
		{{group.Sum, 2, 10, 2 + 10*others}, {group.Sum, 3, 11, 3 + 11*others}},
		{{group.Product, 1, 3, power(1, 3)}, {group.Product, 2, 4, power(2, 4)}},
		{{group.Min, 1, 2, 1}, {group.Min, 4, 3, 3}},
		{{group.Max, 1, 2, 2}, {group.Max, 4, 3, 4}},
	}
}

func TestAllReduceCoalesced(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		for _, c := range coalescedCases(g.Size()) {
			for root, global := range g.GlobalRanks() {
				n, mine := int(global+1), cohort.Rank(root) == g.Rank()
				list := []*tensor.Tensor{cube(n, c[0].value(mine)), cube(n, c[1].value(mine)), full(c[1].value(mine), 2, n)}
				want := complex64(2+3i) + complex(float32(g.Size()-1), 0)*(10+11i)
				if c[0].op == group.Sum { // complex numbers may stand beside what they consist of
					list = append(list, cube(n, complex64(10+11i)))
					if mine {
						list[3] = cube(n, complex64(2+3i))
					}
				}
				if err := g.AllReduceCoalesced(ctx, list, c[0].op).Wait(ctx); err != nil {
					return err
				}
				name := c[0].op.String()
				if err := errors.Join(wantAll(name, list[0], c[0].want, n, n, n), wantAll(name, list[1], c[1].want, n, n, n),
					wantAll(name, list[2], c[1].want, 2, n)); err != nil {
					return err
				}
				if len(list) == 4 {
					if err := wantAll("complex", list[3], want, n, n, n); err != nil {
						return err
					}
				}
			}
		}
		// Sums of complex numbers alone.
		list := []*tensor.Tensor{full(complex64(1+2i), 2), full(complex64(3i), 1)}
		if err := g.AllReduceCoalesced(ctx, list, group.Sum).Wait(ctx); err != nil {
			return err
		}
		n := complex(float32(g.Size()), 0)
		return errors.Join(wantAll("complex", list[0], n*(1+2i)), wantAll("complex", list[1], n*3i))
	})
}

func scatterOf[T tensor.Element](ctx context.Context, g *group.Group, value func(rank cohort.Rank) T) error {
	for root, global := range g.GlobalRanks() {
		out := cube(int(global+1), value(99))
		var ins []*tensor.Tensor
		if cohort.Rank(root) == g.Rank() {
			for r := range g.Size() {
				ins = append(ins, cube(int(global+1), value(cohort.Rank(r))))
			}
		}
		if err := g.Scatter(ctx, out, ins, cohort.Rank(root)).Wait(ctx); err != nil {
			return err
		}
		if err := wantAll("scatter", out, value(g.Rank())); err != nil {
			return err
		}
	}
	return nil
}

func TestScatter(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		return errors.Join(
			scatterOf(ctx, g, func(r cohort.Rank) float32 { return float32(r) }),
			scatterOf(ctx, g, func(r cohort.Rank) complex64 { return complex(float32(r), float32(r)) }))
	})
}

func gatherOf[T tensor.Element](ctx context.Context, g *group.Group, value func(rank cohort.Rank) T) error {
	for root, global := range g.GlobalRanks() {
		var outs []*tensor.Tensor
		if cohort.Rank(root) == g.Rank() {
			for range g.Size() {
				outs = append(outs, cube(int(global+1), value(99)))
			}
		}
		if err := g.Gather(ctx, outs, cube(int(global+1), value(g.Rank())), cohort.Rank(root)).Wait(ctx); err != nil {
			return err
		}
		for r, out := range outs {
			if err := wantAll("gather", out, value(cohort.Rank(r))); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestGather(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		return gatherOf(ctx, g, func(r cohort.Rank) float32 { return float32(r) })
	})
}

func allGatherOf[T tensor.Element](ctx context.Context, g *group.Group, value func(rank cohort.Rank) T) error {
	for _, global := range g.GlobalRanks() {
		outs := make([]*tensor.Tensor, g.Size())
		for i := range outs {
			outs[i] = cube(int(global+1), value(99))
		}
		if err := g.AllGather(ctx, outs, cube(int(global+1), value(g.Rank()))).Wait(ctx); err != nil {
			return err
		}
		for r, out := range outs {
			if err := wantAll("all_gather", out, value(cohort.Rank(r))); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAllGather(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		return errors.Join(
			allGatherOf(ctx, g, func(r cohort.Rank) float32 { return float32(r) }),
			allGatherOf(ctx, g, func(r cohort.Rank) complex64 { return complex(float32(r), 7) }))
	})
}

// tensorsOf are PyTorch's cases of all_gather_coalesced: one element, 2x2, 3x3x3 ..., in one batch.
func tensorsOf[T tensor.Element](n int, value func(tensor int) T) []*tensor.Tensor {
	var list []*tensor.Tensor
	for id := 1; id <= n; id++ {
		list = append(list, full(value(id), slices.Repeat([]int{id}, id)...))
	}
	return list
}

func allGatherCoalescedOf[T tensor.Element](ctx context.Context, g *group.Group, value func(sum int) T) error {
	for n := 1; n < 4; n++ {
		outs := make([][]*tensor.Tensor, g.Size())
		for r := range outs {
			outs[r] = tensorsOf(n, func(int) T { return value(99) })
		}
		ins := tensorsOf(n, func(id int) T { return value(int(g.Rank() + cohort.Rank(id))) })
		if err := g.AllGatherCoalesced(ctx, outs, ins).Wait(ctx); err != nil {
			return err
		}
		for r, list := range outs {
			for i, out := range list {
				if err := wantAll(fmt.Sprintf("tensor %d of rank %d", i, r), out, value(r+i+1)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func TestAllGatherCoalesced(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		return errors.Join(
			allGatherCoalescedOf(ctx, g, func(v int) float32 { return float32(v) }),
			allGatherCoalescedOf(ctx, g, func(v int) complex64 { return complex(float32(v), float32(-v)) }))
	})
}

// TestAllGatherCoalescedWithEmpty: tensors without elements stand between the others.
func TestAllGatherCoalescedWithEmpty(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		list := func(v float32) []*tensor.Tensor {
			return []*tensor.Tensor{full(v, 2, 2), full(v, 0), full(v+1, 3, 3), full(v, 0), full(v, 0)}
		}
		outs := make([][]*tensor.Tensor, g.Size())
		for r := range outs {
			outs[r] = list(-9)
		}
		if err := g.AllGatherCoalesced(ctx, outs, list(float32(g.Rank()))).Wait(ctx); err != nil {
			return err
		}
		for r, got := range outs {
			for i, want := range list(float32(r)) {
				if !tensor.Equal(got[i], want) {
					return fmt.Errorf("tensor %d of rank %d is %v, want %v", i, r, got[i], want)
				}
			}
		}
		return nil
	})
}

func allToAllOf[T tensor.Element](ctx context.Context, g *group.Group, value func(rank cohort.Rank) T) error {
	n, me := g.Size(), g.Rank()
	// Equal parts.
	out := full(value(99), n, n)
	if err := g.AllToAllInto(ctx, out, full(value(me), n, n), nil, nil).Wait(ctx); err != nil {
		return err
	}
	if err := rowsOf(out, value, func(int) int { return 1 }, n); err != nil {
		return fmt.Errorf("equal parts: %w", err)
	}
	// Equal parts of a tensor that is not contiguous, which PyTorch refuses: row r of the input is what goes to rank r.
	var columns []T
	for range n {
		for r := range n {
			columns = append(columns, value(cohort.Rank(r)+me))
		}
	}
	rows, err := tensor.Must(tensor.From(columns, n, n)).Transpose(0, 1)
	if err != nil {
		return err
	}
	if err := g.AllToAllInto(ctx, out, rows, nil, nil).Wait(ctx); err != nil {
		return err
	}
	if err := rowsOf(out, func(r cohort.Rank) T { return value(r + me) }, func(int) int { return 1 }, n); err != nil {
		return fmt.Errorf("not contiguous: %w", err)
	}
	// Rank i gets i+1 rows of everybody.
	inSplits, total := make([]int, n), 0
	for i := range inSplits {
		inSplits[i] = i + 1
		total += i + 1
	}
	out = full(value(99), int((me+1)*cohort.Rank(n)), n)
	if err := g.AllToAllInto(ctx, out, full(value(me), total, n), slices.Repeat([]int{int(me + 1)}, n), inSplits).Wait(ctx); err != nil {
		return err
	}
	if err := rowsOf(out, value, func(int) int { return int(me + 1) }, n); err != nil {
		return fmt.Errorf("unequal parts: %w", err)
	}
	// The same as lists.
	var ins, outs []*tensor.Tensor
	for i := range n {
		ins = append(ins, full(value(me), i+1, n))
		outs = append(outs, full(value(99), int(me+1), n))
	}
	if err := g.AllToAll(ctx, outs, ins).Wait(ctx); err != nil {
		return err
	}
	for r, out := range outs {
		if err := wantAll("list", out, value(cohort.Rank(r))); err != nil {
			return err
		}
	}
	return nil
}

// rowsOf checks that rows of a tensor come from the ranks in their order.
func rowsOf[T tensor.Element](out *tensor.Tensor, value func(rank cohort.Rank) T, rows func(rank int) int, ranks int) error {
	at := 0
	for r := range ranks {
		part, err := out.Narrow(0, at, rows(r))
		if err != nil {
			return err
		}
		if err := wantAll(fmt.Sprint("from rank ", r), part, value(cohort.Rank(r))); err != nil {
			return err
		}
		at += rows(r)
	}
	return nil
}

func TestAllToAll(t *testing.T) {
	inGroups(t, func(ctx context.Context, g *group.Group, _ cohort.Rank) error {
		return errors.Join(
			allToAllOf(ctx, g, func(r cohort.Rank) float32 { return float32(r) }),
			allToAllOf(ctx, g, func(r cohort.Rank) complex64 { return complex(float32(r), 3) }))
	})
}
