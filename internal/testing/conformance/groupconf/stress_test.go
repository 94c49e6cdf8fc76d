// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// outputs checks the tensors of an operation's future.
type outputs func(outs []*tensor.Tensor) error

// values wants a number of tensors with these values.
func values(want ...int64) outputs {
	return func(outs []*tensor.Tensor) error {
		if len(outs) != len(want) {
			return fmt.Errorf("%d tensors, want %d", len(outs), len(want))
		}
		for i, out := range outs {
			if err := wantAll(fmt.Sprint("tensor ", i), out, want[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// ranks wants a tensor from each rank: i + rank.
func ranks(size, i int) outputs {
	want := make([]int64, size)
	for r := range want {
		want[r] = int64(i + r)
	}
	return values(want...)
}

// at wants something only where a rank is the root.
func at(here bool, want outputs) outputs {
	if here {
		return want
	}
	return func([]*tensor.Tensor) error { return nil }
}

// stress posts post(i) for every round and root at once, and then awaits each in order and checks the tensors of its future.
func stress(t *testing.T, roots bool, post func(ctx context.Context, g *group.Group, i int, root cohort.Rank) (*group.Work, outputs)) {
	t.Helper()
	run(t, func(ctx context.Context, g *group.Group) error {
		n := 1
		if roots {
			n = g.Size()
		}
		var futures []*cohort.Future[[]*tensor.Tensor]
		var checks []outputs
		for i := range rounds {
			for root := range cohort.Rank(n) {
				w, check := post(ctx, g, i, root)
				futures, checks = append(futures, w.Future()), append(checks, check)
			}
		}
		for i, f := range futures {
			outs, err := f.Await(ctx)
			if err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
			if err := checks[i](outs); err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
		}
		return nil
	}, group.WithQueue(rounds*worldSize))
}

// sumOf is the sum over ranks of i + rank.
func sumOf(i, size int) int64 { return int64(i*size + size*(size-1)/2) }

// mine is a rank's tensor in round i.
func mine(g *group.Group, i int) *tensor.Tensor { return full(int64(i)+int64(g.Rank()), 1) }

func room(n int) []*tensor.Tensor {
	outs := make([]*tensor.Tensor, n)
	for i := range outs {
		outs[i] = full(int64(-1), 1)
	}
	return outs
}

func TestBroadcastStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i int, _ cohort.Rank) (*group.Work, outputs) {
		n := g.Size()
		return g.Broadcast(ctx, mine(g, i*n), cohort.Rank(i%n)), values(int64(i*n + i%n))
	})
}

func TestAllReduceStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i int, _ cohort.Rank) (*group.Work, outputs) {
		return g.AllReduce(ctx, mine(g, i), group.Sum), values(sumOf(i, g.Size()))
	})
}

func TestAllReduceCoalescedStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i int, _ cohort.Rank) (*group.Work, outputs) {
		want := sumOf(i, g.Size())
		return g.AllReduceCoalesced(ctx, []*tensor.Tensor{mine(g, i), mine(g, i)}, group.Sum), values(want, want)
	})
}

func TestScatterStress(t *testing.T) {
	stress(t, true, func(ctx context.Context, g *group.Group, i int, root cohort.Rank) (*group.Work, outputs) {
		var ins []*tensor.Tensor
		if root == g.Rank() {
			ins = repeat(mine(g, i), g.Size())
		}
		return g.Scatter(ctx, full(int64(-1), 1), ins, root), values(int64(i) + int64(root))
	})
}

func TestGatherStress(t *testing.T) {
	stress(t, true, func(ctx context.Context, g *group.Group, i int, root cohort.Rank) (*group.Work, outputs) {
		var outs []*tensor.Tensor
		if root == g.Rank() {
			outs = room(g.Size())
		}
		return g.Gather(ctx, outs, mine(g, i), root), at(root == g.Rank(), ranks(g.Size(), i))
	})
}

func TestAllGatherStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i int, _ cohort.Rank) (*group.Work, outputs) {
		return g.AllGather(ctx, room(g.Size()), mine(g, i)), ranks(g.Size(), i)
	})
}

func TestReduceStress(t *testing.T) {
	stress(t, true, func(ctx context.Context, g *group.Group, i int, root cohort.Rank) (*group.Work, outputs) {
		return g.Reduce(ctx, mine(g, i), group.Sum, root), at(root == g.Rank(), values(sumOf(i, g.Size())))
	})
}
