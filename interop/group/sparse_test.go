// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// sparsePlan has, unless it is to be short, every element type with every operator, and shapes with all that is
// special: no entries on some ranks or on all, no elements, four dimensions of both kinds and more, an index that
// occurs several times, large ones. A sum follows every step that PyTorch refuses, in whichever place: all ranks must
// be in step.
func sparsePlan(about torchtest.About, short bool) (plan []step) {
	add := func(s step) {
		s.Op, s.MayRefuse = "sparse", true
		plan = append(plan, s, step{Op: "all_reduce", N: 3, DType: "int64"})
	}
	for _, dt := range allDTypes {
		if !about.Has(torchtest.Halves) && (dt == "float16" || dt == "bfloat16") {
			continue // it cannot be told from outside that this build has no halves
		}
		add(step{N: 9, DType: dt, Shape: []int{20}, Dims: 1})
		add(step{N: 5, DType: dt, Shape: []int{6, 3}, Dims: 1})
		add(step{N: 5, DType: dt, Shape: []int{6, 3}, Dims: 1, Holes: true})
		add(step{N: 5, DType: dt, Shape: []int{6, 3}, Dims: 1, Tag: 1}) // only rank 0 has entries
		add(step{N: 0, DType: dt, Shape: []int{6, 3}, Dims: 2})
		reduces := allReduces[1:]
		if short {
			reduces = []string{"max", "avg"}
		}
		for _, reduce := range reduces {
			add(step{N: 4, DType: dt, Shape: []int{5}, Dims: 1, Reduce: reduce})
		}
	}
	larger := []string{"float32", "float64", "int32"}
	if short {
		larger = larger[:1]
	}
	for _, dt := range larger {
		for _, shape := range [][]int{{2, 3, 2, 3}, {2, 2, 2, 2, 2, 2, 2, 2}, {3, 2, 2, 2, 2}} {
			add(step{N: 7, DType: dt, Shape: shape, Dims: min(4, len(shape)-len(shape)/5*4)})
		}
		add(step{N: 3, DType: dt, Shape: []int{2, 2, 2, 2, 2}, Dims: 5})
		add(step{N: 3, DType: dt, Shape: []int{2, 2, 2, 2, 2, 2}, Dims: 1})
		add(step{N: 2, DType: dt, Shape: []int{3, 0}, Dims: 1})
		add(step{N: 2, DType: dt, Shape: []int{3, 4, 0, 2}, Dims: 2})
		add(step{N: 0, DType: dt, Shape: []int{0, 3}, Dims: 1})
		add(step{N: 60_000, DType: dt, Shape: []int{50_000, 5}, Dims: 1})
		add(step{N: 3000, DType: dt, Shape: []int{1 << 20, 1 << 20}, Dims: 2})
	}
	return plan
}

// TestSparse: sums of sparse tensors in worlds with Go ranks are those of a world of PyTorch ranks, bit by bit, and what
// PyTorch refuses is refused, in step; so it is with a check of operations beforehand.
func TestSparse(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, detail := range []bool{false, true} {
			t.Run(fmt.Sprintf("detail=%v", detail), func(t *testing.T) {
				w, plan := world{size: 3}, sparsePlan(tr.About(t), detail)
				if detail {
					w.env, w.options = detailEnv, []group.Option{group.WithDetail()}
				}
				want := w.run(t, tr, plan)
				refused := 0
				for _, got := range want[0] {
					if got == "refused" {
						refused++
					}
				}
				if refused < len(plan)/8 || refused > len(plan)/2 {
					t.Errorf("PyTorch refuses %d of %d", refused, len(plan)/2)
				}
				for _, ranks := range [][]int{{1}, {0, 2}} {
					w := w
					w.goRanks = ranks
					t.Run(w.String(), func(t *testing.T) {
						t.Parallel()
						compare(t, plan, want, w.run(t, tr, plan))
					})
				}
			})
		}
	})
}
