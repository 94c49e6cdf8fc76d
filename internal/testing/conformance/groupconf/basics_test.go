// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// reduction is a case of PyTorch's simple_reduce_tests.
type reduction struct {
	op       group.ReduceOp
	in, want *tensor.Tensor
}

func factorial(n int) float32 {
	f := float32(1)
	for i := 2; i <= n; i++ {
		f *= float32(i)
	}
	return f
}

// simpleReductions returns the inputs of a rank and the results for every operator.
func simpleReductions(rank cohort.Rank, size int) []reduction {
	f := func(v float32) *tensor.Tensor { return full(v, 1) }
	mine := func() *tensor.Tensor { return f(float32(rank + 1)) }
	cases := []reduction{
		{group.Sum, mine(), f(float32(size * (size + 1) / 2))},
		{group.Product, mine(), f(factorial(size))},
		{group.Min, mine(), f(1)},
		{group.Max, mine(), f(float32(size))},
		{group.Avg, mine(), f(float32(size+1) / 2)},
	}
	i32 := func(v int) *tensor.Tensor { return full(int32(v), 1) }
	for i := range 4 { // the bit that is set in all of them moves
		cases = append(cases, reduction{group.And, i32(int(rank | 1<<i)), i32(1 << i)})
	}
	for i := 1; i < 5; i++ { // each rank has i values in one, as if the world were larger
		var or, xor, allOr, allXor int
		for j := range i {
			or |= int(rank)*i + j
			xor ^= int(rank)*i + j
		}
		for v := range size * i {
			allOr |= v
			allXor ^= v
		}
		cases = append(cases, reduction{group.Or, i32(or), i32(allOr)}, reduction{group.Xor, i32(xor), i32(allXor)})
	}
	return cases
}

func TestBroadcastBasics(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		for root := range g.Size() {
			x := full(int64(g.Rank()), 1)
			w := g.Broadcast(ctx, x, cohort.Rank(root))
			outs, err := w.Future().Await(ctx)
			if err != nil {
				return err
			}
			if err := wantAll("the future's tensor", outs[0], int64(root)); err != nil {
				return err
			}
			// Two tensors per rank, one operation.
			const num = 2
			xs := []*tensor.Tensor{full(float32(g.Rank()*num), 1), full(float32(g.Rank()*num+1), 1)}
			if err := g.Coalesce(ctx, func(c *group.Coalescer) {
				for _, x := range xs {
					c.Broadcast(x, cohort.Rank(root))
				}
			}).Wait(ctx); err != nil {
				return err
			}
			for j, x := range xs {
				if err := wantAll("coalesced", x, float32(root*num+j)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestEmptyTensors(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		x := full(float32(0), 0)
		outs, err := g.Broadcast(ctx, x, 0).Future().Await(ctx)
		if err != nil || outs[0] != x || outs[0].Numel() != 0 {
			return fmt.Errorf("%v, %w", outs, err)
		}
		return nil
	})
}

func TestAllReduceBasics(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		for _, c := range simpleReductions(g.Rank(), g.Size()) {
			outs, err := g.AllReduce(ctx, c.in, c.op).Future().Await(ctx)
			if err != nil {
				return fmt.Errorf("%v: %w", c.op, err)
			}
			if !tensor.Equal(outs[0], c.want) {
				return fmt.Errorf("%v: %v, want %v", c.op, outs[0], c.want)
			}
		}
		return nil
	})
}

func TestReduceBasics(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		for i := range simpleReductions(g.Rank(), g.Size()) {
			for root := range g.Size() {
				c := simpleReductions(g.Rank(), g.Size())[i]
				outs, err := g.Reduce(ctx, c.in, c.op, cohort.Rank(root)).Future().Await(ctx)
				if err != nil {
					return fmt.Errorf("%v: %w", c.op, err)
				}
				if cohort.Rank(root) == g.Rank() && (len(outs) != 1 || !tensor.Equal(outs[0], c.want)) {
					return fmt.Errorf("%v: %v, want %v", c.op, outs, c.want)
				}
			}
		}
		return nil
	})
}

func TestAllReduceCoalescedBasics(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		n, r := float32(g.Size()), float32(g.Rank())
		for _, c := range []struct {
			op         group.ReduceOp
			a, b, x, y float32
		}{
			{group.Sum, r + 1, (r + 1) * (r + 1), n * (n + 1) / 2, n * (n + 1) * (2*n + 1) / 6},
			{group.Product, r + 1, r + 2, factorial(g.Size()), factorial(g.Size() + 1)},
			{group.Min, r, r + 1, 0, 1},
			{group.Max, r + 1, r + 2, n, n + 1},
		} {
			a, b := full(c.a, 1), full(c.b, 1)
			outs, err := g.AllReduceCoalesced(ctx, []*tensor.Tensor{a, b}, c.op).Future().Await(ctx)
			if err != nil || len(outs) != 2 {
				return fmt.Errorf("%v: %v, %w", c.op, outs, err)
			}
			if err := errors.Join(wantAll(c.op.String(), a, c.x), wantAll(c.op.String(), b, c.y),
				wantAll("the future's", outs[0], c.x), wantAll("the future's", outs[1], c.y)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestCoalescedAsync: several coalesced operations under way at once.
func TestCoalescedAsync(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		n := g.Size()
		var works []*group.Work
		var sums, ins [2][]*tensor.Tensor
		var outs [2][][]*tensor.Tensor
		for i := range 2 {
			v := int64(cohort.Rank(i) + g.Rank())
			sums[i] = []*tensor.Tensor{full(v, 1), full(v, 1)}
			ins[i] = []*tensor.Tensor{full(v, 1), full(v, 1)}
			for range n {
				outs[i] = append(outs[i], []*tensor.Tensor{full(int64(0), 1), full(int64(0), 1)})
			}
			works = append(works, g.AllReduceCoalesced(ctx, sums[i], group.Sum), g.AllGatherCoalesced(ctx, outs[i], ins[i]))
		}
		if err := group.WaitAll(ctx, works...); err != nil {
			return err
		}
		for i := range 2 {
			reduced, err := works[2*i].Future().Await(ctx)
			if err != nil {
				return err
			}
			if err := values(sumOf(i, n), sumOf(i, n))(reduced); err != nil {
				return fmt.Errorf("the future of all_reduce_coalesced: %w", err)
			}
			for k := range 2 {
				if err := wantAll("all_reduce_coalesced", sums[i][k], int64(i*n+n*(n-1)/2)); err != nil {
					return err
				}
				for r := range n {
					if err := wantAll("all_gather_coalesced", outs[i][r][k], int64(i+r)); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

func random(seed uint64, shape ...int) *tensor.Tensor {
	r := rand.New(rand.NewPCG(seed, 1))
	x := full(float32(0), shape...)
	data, err := tensor.Data[float32](x)
	if err != nil {
		panic(err)
	}
	for i := range data {
		data[i] = r.Float32()
	}
	return x
}

var coalescedShapes = [][]int{{5, 5}, {10, 10}, {15, 15}}

func TestAllGatherIntoCoalesced(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		var ins, outs []*tensor.Tensor
		for i, s := range coalescedShapes {
			ins = append(ins, random(uint64(cohort.Rank(10*i)+g.Rank()), s...))
			outs = append(outs, full(float32(-1), s[0]*g.Size(), s[1]))
		}
		if err := g.AllGatherIntoCoalesced(ctx, outs, ins).Wait(ctx); err != nil {
			return err
		}
		for i, s := range coalescedShapes {
			for r := range g.Size() {
				part, err := outs[i].Narrow(0, r*s[0], s[0])
				if err != nil {
					return err
				}
				if !tensor.Equal(part, random(uint64(10*i+r), s...)) {
					return fmt.Errorf("tensor %d of rank %d is another", i, r)
				}
			}
		}
		return nil
	})
}

// scattered checks one rank's part of the sum of the ranks' random tensors.
func scattered(out *tensor.Tensor, seed uint64, g *group.Group, rows, columns int) error {
	want := make([]float64, rows*columns)
	for r := range g.Size() {
		part, err := random(seed+uint64(r), rows*g.Size(), columns).Narrow(0, rows*int(g.Rank()), rows)
		if err != nil {
			return err
		}
		values, err := tensor.Copy[float32](part)
		if err != nil {
			return err
		}
		for i, v := range values {
			want[i] += float64(v)
		}
	}
	got, err := tensor.Copy[float32](out)
	if err != nil {
		return err
	}
	for i := range want {
		if d := float64(got[i]) - want[i]; d > 1e-5 || d < -1e-5 {
			return fmt.Errorf("element %d is %v, want %v", i, got[i], want[i])
		}
	}
	return nil
}

func TestReduceScatterInto(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		out := full(float32(-1), 20, 20)
		if err := g.ReduceScatterInto(ctx, out, random(uint64(g.Rank()), 20*g.Size(), 20), group.Sum).Wait(ctx); err != nil {
			return err
		}
		return scattered(out, 0, g, 20, 20)
	})
}

func TestReduceScatterIntoCoalesced(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		var ins, outs []*tensor.Tensor
		for i, s := range coalescedShapes {
			ins = append(ins, random(uint64(cohort.Rank(10*i)+g.Rank()), s[0]*g.Size(), s[1]))
			outs = append(outs, full(float32(-1), s...))
		}
		if err := g.ReduceScatterIntoCoalesced(ctx, outs, ins, group.Sum).Wait(ctx); err != nil {
			return err
		}
		for i, s := range coalescedShapes {
			if err := scattered(outs[i], uint64(10*i), g, s[0], s[1]); err != nil {
				return fmt.Errorf("tensor %d: %w", i, err)
			}
		}
		return nil
	})
}

// same leaves a tensor as it is; column makes it a part of another one.
func same(t *tensor.Tensor) (*tensor.Tensor, error) { return t, nil }

func build(form func(*tensor.Tensor) (*tensor.Tensor, error), v int64) *tensor.Tensor {
	return tensor.Must(form(full(v, 1)))
}

func TestScatterBasics(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		n := g.Size()
		futures := make([]*cohort.Future[[]*tensor.Tensor], n)
		for root := range cohort.Rank(n) { // all under way before the first is waited for
			var ins []*tensor.Tensor
			if root == g.Rank() {
				ins = repeat(full(int64(root), 1), n)
			}
			futures[root] = g.Scatter(ctx, full(int64(-1), 1), ins, root).Future()
		}
		for root, f := range futures {
			outs, err := f.Await(ctx)
			if err != nil {
				return err
			}
			if err := values(int64(root))(outs); err != nil {
				return err
			}
		}
		return nil
	})
}

func gather(t *testing.T, form func(*tensor.Tensor) (*tensor.Tensor, error)) {
	t.Helper()
	run(t, func(ctx context.Context, g *group.Group) error {
		n := g.Size()
		in := build(form, int64(g.Rank()))
		futures := make([]*cohort.Future[[]*tensor.Tensor], n)
		for root := range cohort.Rank(n) {
			var outs []*tensor.Tensor
			for range n {
				if root == g.Rank() {
					outs = append(outs, build(form, -1))
				}
			}
			futures[root] = g.Gather(ctx, outs, in, root).Future()
		}
		for root, f := range futures {
			outs, err := f.Await(ctx)
			if err != nil {
				return err
			}
			if err := at(cohort.Rank(root) == g.Rank(), ranks(n, 0))(outs); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestGatherBasics(t *testing.T)        { gather(t, same) }
func TestGatherNonContiguous(t *testing.T) { gather(t, column) }

func allGather(t *testing.T, form func(*tensor.Tensor) (*tensor.Tensor, error)) {
	t.Helper()
	run(t, func(ctx context.Context, g *group.Group) error {
		for n := 1; n <= 3; n++ { // tensors per rank
			outs, ins := make([][]*tensor.Tensor, g.Size()), make([]*tensor.Tensor, n)
			for i := range ins {
				ins[i] = build(form, int64(cohort.Rank(n)*g.Rank()+cohort.Rank(i)))
			}
			for r := range outs {
				for range n {
					outs[r] = append(outs[r], build(form, -1))
				}
			}
			var w *group.Work
			if n == 1 {
				w = g.AllGather(ctx, slices.Concat(outs...), ins[0])
			} else {
				w = g.AllGatherCoalesced(ctx, outs, ins)
			}
			got, err := w.Future().Await(ctx)
			if err != nil {
				return err
			}
			if err := ranks(n*g.Size(), 0)(got); err != nil {
				return fmt.Errorf("%d tensors per rank: %w", n, err)
			}
		}
		return nil
	})
}

func TestAllGatherBasics(t *testing.T)        { allGather(t, same) }
func TestAllGatherNonContiguous(t *testing.T) { allGather(t, column) }

// TestBarrierImpliesWait: what was posted before a barrier is complete after it, though no goroutine waited for it.
func TestBarrierImpliesWait(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		tensors := make([]*tensor.Tensor, 16)
		for i := range tensors {
			tensors[i] = full(float32(i), 100, 100)
			g.AllReduce(ctx, tensors[i], group.Sum)
		}
		if _, err := g.Barrier(ctx).Future().Await(ctx); err != nil {
			return err
		}
		for i, x := range tensors {
			if err := wantAll(fmt.Sprint("tensor ", i), x, float32(i*g.Size())); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestBoolTensors(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		want := tensor.Must(tensor.From([]bool{true, false, false, true}, 4))
		x := full(false, 4)
		if g.Rank() == 0 {
			x = tensor.Must(want.Clone())
		}
		if err := g.Broadcast(ctx, x, 0).Wait(ctx); err != nil {
			return err
		}
		if !tensor.Equal(x, want) {
			return fmt.Errorf("%v", x)
		}
		return nil
	})
}

// TestBroadcastCoalesced: tensors of several types in buckets of 256 bytes, from every root.
func TestBroadcastCoalesced(t *testing.T) {
	run(t, func(ctx context.Context, g *group.Group) error {
		list := func(root bool) (list []*tensor.Tensor) {
			for _, dt := range []tensor.DType{
				tensor.Float32, tensor.Float32, tensor.Float32, tensor.Float64, tensor.Float16,
				tensor.Float32,
			} {
				for chunk := range 5 {
					x := tensor.Must(tensor.New(dt, 12))
					for i := 0; root && i < 12; i++ {
						if err := x.Set(float64(12*chunk+i), i); err != nil {
							panic(err)
						}
					}
					list = append(list, x)
				}
			}
			return list
		}
		for root := range g.Size() {
			got, want := list(cohort.Rank(root) == g.Rank()), list(true)
			if err := g.BroadcastCoalesced(ctx, got, 256, cohort.Rank(root)); err != nil {
				return err
			}
			for i := range want {
				if !tensor.Equal(got[i], want[i]) {
					return fmt.Errorf("tensor %d from root %d: %v", i, root, got[i])
				}
			}
		}
		return nil
	})
}

// TestSeveralDevices: operations over two devices in turn, twice around.
func TestSeveralDevices(t *testing.T) {
	runOver(t, group.Gloo, worldSize, func(ctx context.Context, g *group.Group) error {
		var works []*group.Work
		var tensors []*tensor.Tensor
		for i := range 4 {
			tensors = append(tensors, full(float32(1), i+1))
			works = append(works, g.AllReduce(ctx, tensors[i], group.Sum))
		}
		if err := group.WaitAll(ctx, works...); err != nil {
			return err
		}
		for _, x := range tensors {
			if err := wantAll("all_reduce", x, float32(g.Size())); err != nil {
				return err
			}
		}
		return nil
	}, group.WithDevices("127.0.0.1", "127.0.0.1"))
}
