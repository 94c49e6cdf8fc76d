// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// The three tensors of PyTorch's tests of arguments.
func samples() (t1, t2, t3 *tensor.Tensor) {
	return full(float32(0), 1), full(float64(0), 1), full(float32(0), 2)
}

func TestBroadcastChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, _ := samples()
		return errors.Join(
			refused("root -1", g.Broadcast(ctx, t1, -1)),
			refused("root 4", g.Broadcast(ctx, t1, dist.Rank(g.Size()))),
			refused("no tensor", g.Broadcast(ctx, nil, g.Rank())),
			refused("two types in one scope", g.Coalesce(ctx, func(c *group.Coalescer) { c.Broadcast(t1, 0); c.Broadcast(t2, 0) })),
			untouched(ctx, g))
	})
}

func TestAllReduceChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, _, _ := samples()
		return errors.Join(
			refused("no tensor", g.AllReduce(ctx, nil, group.Sum)),
			refused("bits of float32", g.AllReduce(ctx, t1, group.And)),
			refused("no operator", g.AllReduce(ctx, t1, 99)),
			untouched(ctx, g))
	})
}

func TestAllReduceCoalescedChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, _ := samples()
		return errors.Join(
			refused("empty list", g.AllReduceCoalesced(ctx, nil, group.Sum)),
			refused("two types", g.AllReduceCoalesced(ctx, []*tensor.Tensor{t1, t2}, group.Sum)),
			refused("no tensor", g.AllReduceCoalesced(ctx, []*tensor.Tensor{t1, nil}, group.Sum)),
			untouched(ctx, g))
	})
}

func TestScatterChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, t3 := samples()
		n, me := g.Size(), g.Rank()
		return errors.Join(
			refused("root -1", g.Scatter(ctx, t1, nil, -1)),
			refused("root 4", g.Scatter(ctx, t1, nil, dist.Rank(n))),
			refused("no output", g.Scatter(ctx, nil, nil, 0)),
			refused("no input at the root", g.Scatter(ctx, t1, nil, me)),
			refused("one tensor too few", g.Scatter(ctx, t1, repeat(t1, n-1), me)),
			refused("one tensor too many", g.Scatter(ctx, t1, repeat(t1, n+1), me)),
			refused("another type", g.Scatter(ctx, t1, repeat(t2, n), me)),
			refused("another size", g.Scatter(ctx, t1, repeat(t3, n), me)),
			refused("input elsewhere", g.Scatter(ctx, t1, repeat(t1, n), (me+1)%dist.Rank(n))),
			untouched(ctx, g))
	})
}

func TestGatherChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, t3 := samples()
		n, me := g.Size(), g.Rank()
		return errors.Join(
			refused("root -1", g.Gather(ctx, nil, t1, -1)),
			refused("root 4", g.Gather(ctx, nil, t1, dist.Rank(n))),
			refused("no input", g.Gather(ctx, nil, nil, 0)),
			refused("no output at the root", g.Gather(ctx, nil, t1, me)),
			refused("one tensor too few", g.Gather(ctx, repeat(t1, n-1), t1, me)),
			refused("one tensor too many", g.Gather(ctx, repeat(t1, n+1), t1, me)),
			refused("another type", g.Gather(ctx, repeat(t2, n), t1, me)),
			refused("another size", g.Gather(ctx, repeat(t3, n), t1, me)),
			refused("output elsewhere", g.Gather(ctx, repeat(t1, n), t1, (me+1)%dist.Rank(n))),
			untouched(ctx, g))
	})
}

func TestAllGatherChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, t3 := samples()
		n := g.Size()
		mixed := func(other *tensor.Tensor) []*tensor.Tensor {
			list := repeat(t1, n)
			list[g.Rank()] = other
			return list
		}
		return errors.Join(
			refused("nothing", g.AllGather(ctx, nil, nil)),
			refused("no output", g.AllGather(ctx, nil, t1)),
			refused("one tensor too few", g.AllGather(ctx, repeat(t1, n-1), t1)),
			refused("one tensor too many", g.AllGather(ctx, repeat(t1, n+1), t1)),
			refused("another type", g.AllGather(ctx, repeat(t1, n), t2)),
			refused("one of another type", g.AllGather(ctx, mixed(t2), t1)),
			refused("one of another size", g.AllGather(ctx, mixed(t3), t1)),
			refused("another size", g.AllGather(ctx, repeat(t1, n), t3)),
			untouched(ctx, g))
	})
}

func TestAllGatherCoalescedChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		in := []*tensor.Tensor{full(float32(0), 1)}
		outs := func(lists int, first *tensor.Tensor) [][]*tensor.Tensor {
			all := make([][]*tensor.Tensor, lists)
			for i := range all {
				all[i] = []*tensor.Tensor{full(float32(0), 1)}
			}
			all[0] = []*tensor.Tensor{first}
			return all
		}
		n := g.Size()
		return errors.Join(
			refused("an output of another size", g.AllGatherCoalesced(ctx, outs(n, full(float32(0), 0)), in)),
			refused("an output of another type", g.AllGatherCoalesced(ctx, outs(n, full(float64(0), 1)), in)),
			refused("too many lists", g.AllGatherCoalesced(ctx, outs(n+1, full(float32(0), 1)), in)),
			refused("a list too short", g.AllGatherCoalesced(ctx, append(outs(n-1, full(float32(0), 1)), nil), in)),
			untouched(ctx, g))
	})
}

func TestReduceChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, _, _ := samples()
		return errors.Join(
			refused("root -1", g.Reduce(ctx, t1, group.Sum, -1)),
			refused("root 4", g.Reduce(ctx, t1, group.Sum, dist.Rank(g.Size()))),
			refused("no tensor", g.Reduce(ctx, nil, group.Sum, g.Rank())),
			untouched(ctx, g))
	})
}

// TestTypesMustMatch: every operation with several tensors refuses two element types.
func TestTypesMustMatch(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		n, me := g.Size(), g.Rank()
		x, h := full(float32(7), 2, 2), tensor.Must(tensor.New(tensor.Float16, 2, 2))
		list := repeat(full(float32(0), 2, 2), n)
		mixed := append([]*tensor.Tensor{}, list...)
		mixed[1] = h
		return errors.Join(
			refused("all_gather into a list of two types", g.AllGather(ctx, mixed, x)),
			refused("all_gather", g.AllGather(ctx, list, h)),
			refused("all_gather_coalesced, outputs", g.AllGatherCoalesced(ctx, [][]*tensor.Tensor{mixed, list, list, list}, list)),
			refused("all_gather_coalesced, inputs", g.AllGatherCoalesced(ctx, [][]*tensor.Tensor{list, list, list, list}, mixed)),
			refused("all_reduce_coalesced", g.AllReduceCoalesced(ctx, mixed, group.Sum)),
			refused("reduce_scatter of a list of two types", g.ReduceScatter(ctx, x, mixed, group.Sum)),
			refused("reduce_scatter", g.ReduceScatter(ctx, h, list, group.Sum)),
			refused("all_to_all_single", g.AllToAllInto(ctx, h, x, nil, nil)),
			refused("all_to_all, outputs", g.AllToAll(ctx, mixed, list)),
			refused("all_to_all, inputs", g.AllToAll(ctx, list, mixed)),
			refused("scatter of a list of two types", g.Scatter(ctx, x, mixed, me)),
			refused("scatter", g.Scatter(ctx, h, list, me)),
			refused("gather into a list of two types", g.Gather(ctx, mixed, x, me)),
			refused("gather", g.Gather(ctx, list, h, me)),
			untouched(ctx, g))
	})
}

// TestComplexOperators: complex numbers have sums, and no order.
func TestComplexOperators(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		x := full(complex64(1), 2)
		var errs []error
		for _, op := range []group.ReduceOp{group.Min, group.Max, group.And, group.Or, group.Xor} {
			errs = append(errs,
				refused(op.String(), g.AllReduce(ctx, x, op)),
				refused(op.String()+" coalesced", g.AllReduceCoalesced(ctx, []*tensor.Tensor{x}, op)))
		}
		errs = append(errs, untouched(ctx, g))
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return wantAll("the tensor", x, complex64(1))
	})
}
