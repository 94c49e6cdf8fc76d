// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// coalesced runs the operations on several tensors, with the numbers of rank.py.
func coalesced(ctx context.Context, g *group.Group, k int, s step) (string, error) {
	me, n, dt, size := g.Rank(), s.N, dtypeOf(s.DType), g.Size()
	x, y := data(k, me, n, dt, 0), data(k, me, n+3, dt, 1)
	empty := func(count int) *tensor.Tensor { return tensor.Must(tensor.New(dt, count)) }
	switch s.Op {
	case "all_gather_coalesced":
		outs := make([][]*tensor.Tensor, size)
		for r := range outs {
			outs[r] = []*tensor.Tensor{empty(n), empty(n + 3)}
		}
		return digestAfter(g.AllGatherCoalesced(ctx, outs, []*tensor.Tensor{x, y}).Wait(ctx), slices.Concat(outs...)...)
	case "all_reduce_parts": // complex numbers beside what they consist of
		z := data(k, me, n, tensor.Complex64, 2)
		return digestAfter(g.AllReduceCoalesced(ctx, []*tensor.Tensor{x, y, z}, group.Sum).Wait(ctx), x, y, z)
	case "all_gather_parts":
		outs := make([]*tensor.Tensor, size)
		for r := range outs {
			if outs[r] = tensor.Must(tensor.New(dt, n, 2)); r == 1 {
				outs[r] = tensor.Must(tensor.New(tensor.Complex64, n))
			}
		}
		return digestAfter(g.AllGather(ctx, outs, data(k, me, n, tensor.Complex64, 2)).Wait(ctx), outs...)
	case "all_gather_scope":
		a, b := empty(n*size), empty((n+3)*size)
		return digestAfter(g.Coalesce(ctx, func(c *group.Coalescer) {
			c.AllGatherInto(a, x)
			c.AllGatherInto(b, y)
		}).Wait(ctx), a, b)
	case "reduce_scatter_scope":
		a, b := empty(n), empty(n+3)
		return digestAfter(g.Coalesce(ctx, func(c *group.Coalescer) {
			c.ReduceScatterInto(a, data(k, me, n*size, dt, 0), reduceOps[s.Reduce])
			c.ReduceScatterInto(b, data(k, me, (n+3)*size, dt, 1), reduceOps[s.Reduce])
		}).Wait(ctx), a, b)
	case "broadcast_coalesced":
		ts := []*tensor.Tensor{x, data(k, me, n+3, tensor.Int64, 1), data(k, me, n+1, dt, 2), data(k, me, 2*n, dt, 3)}
		return digestAfter(g.BroadcastCoalesced(ctx, ts, 8*n+1, s.Root), ts...)
	}
	return "", fmt.Errorf("unknown operation %q", s.Op)
}

// objectLists sends a list of objects to every rank; n says that the receiver knows the sender.
func objectLists(ctx context.Context, g *group.Group, k int, s step) (string, error) {
	var list [][]byte
	for i := range 3 {
		list = append(list, pickled(strings.Repeat(fmt.Sprintf("object %d of %d.%d", k, s.Root, i), i+1)))
	}
	if g.Rank() == s.Root {
		for r := range g.Size() {
			if cohort.Rank(r) == s.Root {
				continue
			}
			if err := g.SendObjects(ctx, list, cohort.Rank(r)); err != nil {
				return "", err
			}
		}
		return "-", nil
	}
	from := s.Root
	if s.N == 0 {
		from = cohort.NoRank
	}
	got := make([][]byte, 3)
	source, err := g.RecvObjects(ctx, got, from)
	if err == nil && source != s.Root {
		err = fmt.Errorf("the objects came from rank %d", source)
	}
	var texts []string
	for _, b := range got {
		texts = append(texts, unpickled(b))
	}
	return strings.Join(texts, "|"), err
}

// coalescePlan has what a version knows of the operations on several tensors.
func coalescePlan(size int, version string, checked bool) []step {
	plan := []step{{Op: "barrier"}}
	for root := range cohort.Rank(size) {
		plan = append(plan, step{Op: "broadcast_coalesced", N: 5, DType: "float32", Root: root})
	}
	for _, n := range []int{1, 6, 1000} {
		for _, dt := range []string{"float32", "int64", "complex64"} {
			plan = append(plan, step{Op: "all_gather_coalesced", N: n, DType: dt})
		}
	}
	for _, n := range []int{1, 6, 1000} {
		plan = append(plan, step{Op: "all_reduce_parts", N: n, DType: "float32"}, step{Op: "all_gather_parts", N: n, DType: "float32"})
	}
	// Refused by all of them, and all go on; not to a barrier, in which PyTorch raises earlier errors again.
	var refused []step
	for _, op := range []string{"all_reduce", "reduce", "all_reduce_coalesced"} {
		refused = append(refused, step{Op: op, N: 3, DType: "float32", Reduce: "premul_sum", MayRefuse: true},
			step{Op: "all_reduce", N: 3, DType: "float32"})
	}
	if version == "1.13" {
		return append(plan, refused...)
	}
	for root := range cohort.Rank(size) {
		plan = append(plan, step{Op: "objects", Root: root})
	}
	if version == "newest" || !checked { // 2.6 and 2.11 have no check of these
		for _, n := range []int{1, 6, 1000} {
			plan = append(plan, step{Op: "all_gather_scope", N: n, DType: "float64"},
				step{Op: "reduce_scatter_scope", N: n, DType: "float32"},
				step{Op: "reduce_scatter_scope", N: n, DType: "int32"})
			if version == "newest" {
				plan = append(plan, step{Op: "reduce_scatter_scope", N: n, DType: "float32", Reduce: "avg"},
					step{Op: "reduce_scatter_scope", N: n, DType: "float64", Reduce: "max"})
			}
		}
		refused = append([]step{
			{Op: "reduce_scatter_scope", N: 3, DType: "int16", MayRefuse: true},
			{Op: "all_gather_scope", N: 3, DType: "int16", MayRefuse: true},
		}, refused...)
	}
	if !checked { // which counts messages, and the ranks send and receive different numbers of them
		for root := range cohort.Rank(size) {
			plan = append(plan, step{Op: "object_lists", Root: root}, step{Op: "barrier"},
				step{Op: "object_lists", N: 1, Root: root}, step{Op: "barrier"})
		}
	}
	return append(plan, refused...)
}

// twice has a plan run by a group of some ranks too.
func twice(plan []step, name string, ranks []int) []step {
	both := append(slices.Clone(plan), step{Op: "new_group", Name: name, Ranks: ranks})
	for _, s := range plan {
		s.Group, s.Ranks, s.Root = name, ranks, s.Root%cohort.Rank(len(ranks))
		both = append(both, s)
	}
	return both
}

// TestCoalesced holds operations on several tensors, and lists of objects between two ranks, against PyTorch alone.
func TestCoalesced(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, checked := range []bool{false, true} {
			const size = 3
			var env map[string]string
			var options []group.Option
			if checked {
				env, options = detailEnv, []group.Option{group.WithDetail()}
			}
			plan := twice(coalescePlan(size, tr.Name, checked), "pair", []int{0, 2})
			want := world{size: size, env: env}.run(t, tr, plan)
			for _, goRanks := range [][]int{{0}, {2}, {0, 1}} {
				w := world{size: size, goRanks: goRanks, env: env, options: options}
				t.Run(fmt.Sprintf("%v,checked=%v", w, checked), func(t *testing.T) { compare(t, plan, want, w.run(t, tr, plan)) })
			}
		}
	})
}
