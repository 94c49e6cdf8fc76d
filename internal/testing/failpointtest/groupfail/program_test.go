// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"weak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// operation is one step of a program: post starts it on a rank and returns what to wait for, check looks at the result.
type operation struct {
	name string
	post func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error)
}

func ints(values ...int64) *tensor.Tensor { return tensor.Must(tensor.From(values, len(values))) }

// buffers are the memory that a rank has given to operations.
type buffers struct{ all []*tensor.Tensor }

// filled has n elements of one value.
func (b *buffers) filled(n int, value int64) *tensor.Tensor {
	values := make([]int64, n)
	for i := range values {
		values[i] = value
	}
	t := ints(values...)
	b.all = append(b.all, t)
	return t
}

// mark is what a rank writes into its memory when all its operations have ended.
const mark = -77

// manyElements are so many that their memory is a block of its own.
const manyElements = 1000

// forget lets go of all of it. What it returns reports whether another part has not.
func (b *buffers) forget() (kept []func() bool) {
	for _, t := range b.all {
		if values, err := tensor.Data[int64](t); err == nil && len(values) >= manyElements {
			p := weak.Make(&values[0])
			kept = append(kept, func() bool { return p.Value() != nil })
		}
	}
	b.all = nil
	return kept
}

// takeBack writes the mark into all of it.
func (b *buffers) takeBack() {
	for _, t := range b.all {
		if values, err := tensor.Data[int64](t); err == nil {
			for i := range values {
				values[i] = mark
			}
		}
	}
}

// untouched reports whether it has not been written since.
func (b *buffers) untouched() error {
	for _, t := range b.all {
		if err := all("memory that was taken back", t, mark)(); err != nil {
			return err
		}
	}
	return nil
}

// all checks that every element of t is want.
func all(what string, t *tensor.Tensor, want int64) func() error {
	return func() error {
		got, err := tensor.Copy[int64](t)
		if err == nil && slices.ContainsFunc(got, func(v int64) bool { return v != want }) {
			err = fmt.Errorf("%s: %v..., want %d", what, got[:min(len(got), 4)], want)
		}
		return err
	}
}

func nothing() error { return nil }

// sum is what the ranks of a group add up to when each brings its rank plus one.
func sum(g *group.Group) int64 { return int64(g.Size() * (g.Size() + 1) / 2) }

func mine(g *group.Group) int64 { return int64(g.Rank() + 1) }

var operations = []operation{
	{"all-reduce", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		t := b.filled(n, mine(g))
		return []*group.Work{g.AllReduce(ctx, t, group.Sum)}, all("all-reduce", t, sum(g))
	}},
	{"sparse", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		s := &tensor.Sparse{
			Shape: []int{2, n}, Indices: tensor.Must(tensor.From([]int64{1}, 1, 1)),
			Values: tensor.Must(b.filled(n, mine(g)).Reshape(1, n)),
		}
		return []*group.Work{g.AllReduceSparse(ctx, s, group.Sum)}, func() error { return all("sparse", s.Values, sum(g))() }
	}},
	{"broadcast", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		t := b.filled(n, mine(g))
		return []*group.Work{g.Broadcast(ctx, t, 1)}, all("broadcast", t, 2)
	}},
	{"reduce", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		t := b.filled(n, mine(g))
		check := nothing
		if g.Rank() == 1 {
			check = all("reduce", t, sum(g))
		}
		return []*group.Work{g.Reduce(ctx, t, group.Sum, 1)}, check
	}},
	{"all-gather", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		outs := make([]*tensor.Tensor, g.Size())
		for i := range outs {
			outs[i] = b.filled(n, 0)
		}
		return []*group.Work{g.AllGather(ctx, outs, b.filled(n, mine(g)))}, func() error {
			for i, t := range outs {
				if err := all("all-gather", t, int64(i+1))(); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"gather", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		var outs []*tensor.Tensor
		if g.Rank() == 0 {
			for range g.Size() {
				outs = append(outs, b.filled(n, 0))
			}
		}
		return []*group.Work{g.Gather(ctx, outs, b.filled(n, mine(g)), 0)}, nothing
	}},
	{"scatter", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		out := b.filled(n, 0)
		var ins []*tensor.Tensor
		if g.Rank() == 1 {
			for i := range g.Size() {
				ins = append(ins, b.filled(n, int64(i+1)))
			}
		}
		return []*group.Work{g.Scatter(ctx, out, ins, 1)}, all("scatter", out, mine(g))
	}},
	{"reduce-scatter", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		out := b.filled(n, 0)
		return []*group.Work{g.ReduceScatterInto(ctx, out, b.filled(n*g.Size(), mine(g)), group.Sum)}, all("reduce-scatter", out, sum(g))
	}},
	{"all-to-all", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		out := b.filled(n*g.Size(), 0)
		return []*group.Work{g.AllToAllInto(ctx, out, b.filled(n*g.Size(), 7), nil, nil)}, all("all-to-all", out, 7)
	}},
	{"barrier", func(ctx context.Context, g *group.Group, _ *buffers, _ int) ([]*group.Work, func() error) {
		return []*group.Work{g.Barrier(ctx)}, nothing
	}},
	{"ring of messages", func(ctx context.Context, g *group.Group, b *buffers, n int) ([]*group.Work, func() error) {
		in := b.filled(n, 0)
		own, size := g.Rank(), cohort.Rank(g.Size())
		from := (own + size - 1) % size
		recv := g.Recv(ctx, in, from, 3)
		send := g.Send(ctx, b.filled(n, mine(g)), (own+1)%size, 3)
		return []*group.Work{send, recv}, all("ring of messages", in, int64(from+1))
	}},
}

// step is an operation of a certain size.
type step struct {
	operation
	n int
}

// program is what every rank does, the same on all of them.
func program(rng *rand.Rand) []step {
	steps := make([]step, 1+rng.IntN(3))
	sizes := []int{1, 100, 5_000, 100_000}
	for i := range steps {
		steps[i] = step{operations[rng.IntN(len(operations))], sizes[rng.IntN(len(sizes))]}
	}
	return steps
}
