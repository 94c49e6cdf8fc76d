// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// stress posts post(i) for every round and root at once, and then checks each in order.
func stress(t *testing.T, roots bool, post func(ctx context.Context, g *group.Group, i, root int) (*group.Work, func() error)) {
	t.Helper()
	run(t, func(ctx context.Context, g *group.Group) error {
		n := 1
		if roots {
			n = g.Size()
		}
		var works []*group.Work
		var checks []func() error
		for i := range rounds {
			for root := range dist.Rank(n) {
				w, check := post(ctx, g, i, int(root))
				works, checks = append(works, w), append(checks, check)
			}
		}
		for i, w := range works {
			if err := w.Wait(ctx); err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
			if err := checks[i](); err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
		}
		return nil
	}, group.WithQueue(rounds*worldSize))
}

// sumOf is the sum over ranks of i + rank.
func sumOf(i, size int) int64 { return int64(i*size + size*(size-1)/2) }

func TestBroadcastStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i, _ int) (*group.Work, func() error) {
		n := g.Size()
		x := full(int64(dist.Rank(i*n)+g.Rank()), 1)
		return g.Broadcast(ctx, x, dist.Rank(i%n)), func() error { return wantAll("broadcast", x, int64(i*n+i%n)) }
	})
}

func TestAllReduceStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i, _ int) (*group.Work, func() error) {
		x := full(int64(dist.Rank(i)+g.Rank()), 1)
		return g.AllReduce(ctx, x, group.Sum), func() error { return wantAll("all_reduce", x, sumOf(i, g.Size())) }
	})
}

func TestAllReduceCoalescedStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i, _ int) (*group.Work, func() error) {
		x, y := full(int64(dist.Rank(i)+g.Rank()), 1), full(int64(dist.Rank(i)+g.Rank()), 1)
		return g.AllReduceCoalesced(ctx, []*tensor.Tensor{x, y}, group.Sum), func() error {
			if err := wantAll("the first", x, sumOf(i, g.Size())); err != nil {
				return err
			}
			return wantAll("the second", y, sumOf(i, g.Size()))
		}
	})
}

func TestScatterStress(t *testing.T) {
	stress(t, true, func(ctx context.Context, g *group.Group, i, root int) (*group.Work, func() error) {
		out := full(int64(-1), 1)
		var ins []*tensor.Tensor
		if dist.Rank(root) == g.Rank() {
			ins = repeat(full(int64(i+root), 1), g.Size())
		}
		return g.Scatter(ctx, out, ins, dist.Rank(root)), func() error { return wantAll("scatter", out, int64(i+root)) }
	})
}

// wantRanks checks that the r-th tensor is i + r.
func wantRanks(outs []*tensor.Tensor, i int) error {
	for r, out := range outs {
		if err := wantAll(fmt.Sprint("from rank ", r), out, int64(i+r)); err != nil {
			return err
		}
	}
	return nil
}

func room(n int) []*tensor.Tensor {
	outs := make([]*tensor.Tensor, n)
	for i := range outs {
		outs[i] = full(int64(-1), 1)
	}
	return outs
}

func TestGatherStress(t *testing.T) {
	stress(t, true, func(ctx context.Context, g *group.Group, i, root int) (*group.Work, func() error) {
		var outs []*tensor.Tensor
		if dist.Rank(root) == g.Rank() {
			outs = room(g.Size())
		}
		return g.Gather(ctx, outs, full(int64(dist.Rank(i)+g.Rank()), 1), dist.Rank(root)), func() error { return wantRanks(outs, i) }
	})
}

func TestAllGatherStress(t *testing.T) {
	stress(t, false, func(ctx context.Context, g *group.Group, i, _ int) (*group.Work, func() error) {
		outs := room(g.Size())
		return g.AllGather(ctx, outs, full(int64(dist.Rank(i)+g.Rank()), 1)), func() error { return wantRanks(outs, i) }
	})
}

func TestReduceStress(t *testing.T) {
	stress(t, true, func(ctx context.Context, g *group.Group, i, root int) (*group.Work, func() error) {
		x := full(int64(dist.Rank(i)+g.Rank()), 1)
		return g.Reduce(ctx, x, group.Sum, dist.Rank(root)), func() error {
			if dist.Rank(root) != g.Rank() {
				return nil
			}
			return wantAll("reduce", x, sumOf(i, g.Size()))
		}
	})
}
