// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
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
			refused("root -1", g.Broadcast(ctx, t1, -1), "root -1: the group has ranks 0 to 3"),
			refused("root 4", g.Broadcast(ctx, t1, cohort.Rank(g.Size())), "root 4: the group has ranks 0 to 3"),
			refused("no tensor", g.Broadcast(ctx, nil, g.Rank()), "no tensor"),
			refused("two types in one scope", g.Coalesce(ctx, func(c *group.Coalescer) { c.Broadcast(t1, 0); c.Broadcast(t2, 0) }),
				"tensor 0 is float32, tensor 1 float64"),
			untouched(ctx, g))
	})
}

func TestAllReduceChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, _, _ := samples()
		return errors.Join(
			refused("no tensor", g.AllReduce(ctx, nil, group.Sum), "no tensor"),
			refused("bits of float32", g.AllReduce(ctx, t1, group.And), "band of float32 is not defined"),
			refused("no operator", g.AllReduce(ctx, t1, 99), "reduce_op(99) of float32 is not defined"),
			untouched(ctx, g))
	})
}

func TestAllReduceCoalescedChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, _ := samples()
		return errors.Join(
			refused("empty list", g.AllReduceCoalesced(ctx, nil, group.Sum), "no tensors"),
			refused("two types", g.AllReduceCoalesced(ctx, []*tensor.Tensor{t1, t2}, group.Sum), "tensor 0 is float32, tensor 1 float64"),
			refused("no tensor", g.AllReduceCoalesced(ctx, []*tensor.Tensor{t1, nil}, group.Sum), "no tensor"),
			untouched(ctx, g))
	})
}

func TestScatterChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, t3 := samples()
		n, me := g.Size(), g.Rank()
		return errors.Join(
			refused("root -1", g.Scatter(ctx, t1, nil, -1), "root -1: the group has ranks 0 to 3"),
			refused("root 4", g.Scatter(ctx, t1, nil, cohort.Rank(n)), "root 4: the group has ranks 0 to 3"),
			refused("no output", g.Scatter(ctx, nil, nil, 0), "no tensor"),
			refused("no input at the root", g.Scatter(ctx, t1, nil, me), "0 inputs for 4 ranks"),
			refused("one tensor too few", g.Scatter(ctx, t1, repeat(t1, n-1), me), "3 inputs for 4 ranks"),
			refused("one tensor too many", g.Scatter(ctx, t1, repeat(t1, n+1), me), "5 inputs for 4 ranks"),
			refused("another type", g.Scatter(ctx, t1, repeat(t2, n), me), "the inputs are float64, not float32"),
			refused("another size", g.Scatter(ctx, t1, repeat(t3, n), me), "has 2 elements, the output 1"),
			refused("input elsewhere", g.Scatter(ctx, t1, repeat(t1, n), (me+1)%cohort.Rank(n)), "gives inputs"),
			untouched(ctx, g))
	})
}

func TestGatherChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, t2, t3 := samples()
		n, me := g.Size(), g.Rank()
		return errors.Join(
			refused("root -1", g.Gather(ctx, nil, t1, -1), "root -1: the group has ranks 0 to 3"),
			refused("root 4", g.Gather(ctx, nil, t1, cohort.Rank(n)), "root 4: the group has ranks 0 to 3"),
			refused("no input", g.Gather(ctx, nil, nil, 0), "no tensor"),
			refused("no output at the root", g.Gather(ctx, nil, t1, me), "0 outputs for 4 ranks"),
			refused("one tensor too few", g.Gather(ctx, repeat(t1, n-1), t1, me), "3 outputs for 4 ranks"),
			refused("one tensor too many", g.Gather(ctx, repeat(t1, n+1), t1, me), "5 outputs for 4 ranks"),
			refused("another type", g.Gather(ctx, repeat(t2, n), t1, me), "the outputs are float64, not float32"),
			refused("another size", g.Gather(ctx, repeat(t3, n), t1, me), "has 2 elements, the input 1"),
			refused("output elsewhere", g.Gather(ctx, repeat(t1, n), t1, (me+1)%cohort.Rank(n)), "gives outputs"),
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
			refused("nothing", g.AllGather(ctx, nil, nil), "no tensor"),
			refused("no output", g.AllGather(ctx, nil, t1), "0 outputs for 4 ranks"),
			refused("one tensor too few", g.AllGather(ctx, repeat(t1, n-1), t1), "3 outputs for 4 ranks"),
			refused("one tensor too many", g.AllGather(ctx, repeat(t1, n+1), t1), "5 outputs for 4 ranks"),
			refused("another type", g.AllGather(ctx, repeat(t1, n), t2), "the outputs are float32, not float64"),
			refused("one of another type", g.AllGather(ctx, mixed(t2), t1), "float64"),
			refused("one of another size", g.AllGather(ctx, mixed(t3), t1), "has 2 elements of float32, the input 1"),
			refused("another size", g.AllGather(ctx, repeat(t1, n), t3), "has 1 elements of float32, the input 2"),
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
			refused("an output of another size", g.AllGatherCoalesced(ctx, outs(n, full(float32(0), 0)), in),
				"tensors of 0 and 1 elements"),
			refused("an output of another type", g.AllGatherCoalesced(ctx, outs(n, full(float64(0), 1)), in),
				"the output is float64, the input float32"),
			refused("too many lists", g.AllGatherCoalesced(ctx, outs(n+1, full(float32(0), 1)), in), "5 lists of outputs for 4 ranks"),
			refused("a list too short", g.AllGatherCoalesced(ctx, append(outs(n-1, full(float32(0), 1)), nil), in),
				"as many outputs as inputs"),
			untouched(ctx, g))
	})
}

func TestReduceChecks(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		t1, _, _ := samples()
		return errors.Join(
			refused("root -1", g.Reduce(ctx, t1, group.Sum, -1), "root -1: the group has ranks 0 to 3"),
			refused("root 4", g.Reduce(ctx, t1, group.Sum, cohort.Rank(g.Size())), "root 4: the group has ranks 0 to 3"),
			refused("no tensor", g.Reduce(ctx, nil, group.Sum, g.Rank()), "no tensor"),
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
			refused("all_gather into a list of two types", g.AllGather(ctx, mixed, x), "tensor 0 is float32, tensor 1 float16"),
			refused("all_gather", g.AllGather(ctx, list, h), "the outputs are float32, not float16"),
			refused("all_gather_coalesced, outputs", g.AllGatherCoalesced(ctx, [][]*tensor.Tensor{mixed, list, list, list}, list),
				"the output is float16, the input float32"),
			refused("all_gather_coalesced, inputs", g.AllGatherCoalesced(ctx, [][]*tensor.Tensor{list, list, list, list}, mixed),
				"the output is float32, the input float16"),
			refused("all_reduce_coalesced", g.AllReduceCoalesced(ctx, mixed, group.Sum), "tensor 0 is float32, tensor 1 float16"),
			refused("reduce_scatter of a list of two types", g.ReduceScatter(ctx, x, mixed, group.Sum),
				"tensor 0 is float32, tensor 1 float16"),
			refused("reduce_scatter", g.ReduceScatter(ctx, h, list, group.Sum), "the inputs are float32, not float16"),
			refused("all_to_all_single", g.AllToAllInto(ctx, h, x, nil, nil), "the output is float16, the input float32"),
			refused("all_to_all, outputs", g.AllToAll(ctx, mixed, list), "tensor 0 is float32, tensor 1 float16"),
			refused("all_to_all, inputs", g.AllToAll(ctx, list, mixed), "tensor 0 is float32, tensor 1 float16"),
			refused("scatter of a list of two types", g.Scatter(ctx, x, mixed, me), "tensor 0 is float32, tensor 1 float16"),
			refused("scatter", g.Scatter(ctx, h, list, me), "the inputs are float32, not float16"),
			refused("gather into a list of two types", g.Gather(ctx, mixed, x, me), "tensor 0 is float32, tensor 1 float16"),
			refused("gather", g.Gather(ctx, list, h, me), "the outputs are float32, not float16"),
			untouched(ctx, g))
	})
}

// TestComplexBesideParts: all_gather takes complex numbers for their real and imaginary parts, so that either may go in or come out.
func TestComplexBesideParts(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		for _, in := range []*tensor.Tensor{full(float32(g.Rank()), 2), full(complex(float32(g.Rank()), float32(g.Rank())), 1)} {
			for _, odd := range []int{-1, 1} { // none, or one of the outputs is complex
				outs := make([]*tensor.Tensor, g.Size())
				for r := range outs {
					if outs[r] = full(float32(-1), 2); r == odd {
						outs[r] = full(complex64(-1), 1)
					}
				}
				if err := g.AllGather(ctx, outs, in).Wait(ctx); err != nil {
					return err
				}
				for r, out := range outs {
					err := wantAll("complex", out, complex(float32(r), float32(r)), 1)
					if r != odd {
						err = wantAll("parts", out, float32(r), 2)
					}
					if err != nil {
						return fmt.Errorf("of rank %d: %w", r, err)
					}
				}
			}
		}
		x, c := full(float32(1), 1), full(complex64(1), 1)
		return errors.Join(
			refused("all_gather of another size", g.AllGather(ctx, repeat(x, g.Size()), c),
				"has 1 elements of float32, the input 1 of complex64"),
			refused("product", g.AllReduceCoalesced(ctx, []*tensor.Tensor{x, c}, group.Product), "tensor 0 is float32, tensor 1 complex64"),
			refused("parts of another type", g.AllReduceCoalesced(ctx, []*tensor.Tensor{full(1.0, 1), c}, group.Sum),
				"tensor 0 is float64, tensor 1 complex64"))
	})
}

// TestComplexOperators: complex numbers have sums and products, which PyTorch does not compute, and no order.
func TestComplexOperators(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		x := full(complex64(1), 2)
		var errs []error
		for _, op := range []group.ReduceOp{group.Min, group.Max, group.And, group.Or, group.Xor} {
			errs = append(errs,
				refused(op.String(), g.AllReduce(ctx, x, op), op.String()+" of complex64 is not defined"),
				refused(op.String()+" coalesced", g.AllReduceCoalesced(ctx, []*tensor.Tensor{x}, op),
					op.String()+" of complex64 is not defined"))
		}
		errs = append(errs, untouched(ctx, g))
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if err := wantAll("the tensor", x, complex64(1)); err != nil {
			return err
		}
		y := full(complex64(1+2i), 2)
		if err := g.AllReduce(ctx, y, group.Product).Wait(ctx); err != nil {
			return err
		}
		return wantAll("product", y, complex64(-7-24i)) // (1+2i) to the fourth power
	})
}
