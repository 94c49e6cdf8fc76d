// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// shortPlan has every operation once or a few times.
func shortPlan(size int) []step {
	var plan []step
	add := func(s step) { plan = append(plan, s) }
	add(step{Op: "barrier"})
	for _, n := range []int{1, 13, 1000} {
		add(step{Op: "all_reduce", N: n, DType: "float32"})
		add(step{Op: "all_reduce", N: n, DType: "int64", Reduce: "max"})
		add(step{Op: "all_gather", N: n, DType: "float32"})
		add(step{Op: "all_to_all_single", N: n, DType: "int32"})
		add(step{Op: "all_to_all_uneven", N: n, DType: "float64"})
		add(step{Op: "ring", N: n, DType: "float32"})
	}
	for root := range cohort.Rank(size) {
		add(step{Op: "broadcast", N: 7, DType: "float32", Root: root})
		add(step{Op: "reduce", N: 100, DType: "float32", Root: root})
		add(step{Op: "gather", N: 3, DType: "float32", Root: root})
		add(step{Op: "scatter", N: 3, DType: "float32", Root: root})
		add(step{Op: "any", N: 5, DType: "int16", Root: root})
		add(step{Op: "objects", Root: root})
	}
	add(step{Op: "monitored_barrier"})
	add(step{Op: "batch", N: 400_000, DType: "float32"})
	add(step{Op: "async", N: 5000, DType: "float32"})
	add(step{Op: "all_reduce", N: 600_001, DType: "float32"})
	for i := range size - 1 {
		name := string(rune('a' + i))
		ranks := []int{i, i + 1}
		add(step{Op: "new_group", Name: name, Ranks: ranks})
		add(step{Op: "all_reduce", N: 11, DType: "float32", Group: name, Ranks: ranks})
		add(step{Op: "broadcast", N: 11, DType: "float32", Group: name, Ranks: ranks, Root: 1})
		for _, op := range []string{"barrier", "ring", "batch", "any", "async"} {
			add(step{Op: op, N: 300, DType: "float32", Group: name, Ranks: ranks, Root: cohort.Rank(i % 2)})
		}
		if i == 0 { // PyTorch 1.13 takes world ranks for the ranks of a group there; see coalescePlan for the others
			add(step{Op: "objects", Group: name, Ranks: ranks, Root: 0})
			add(step{Op: "objects", Group: name, Ranks: ranks, Root: 1})
		}
	}
	return plan
}

// compare holds two worlds side by side, rank by rank and step by step.
func compare(t *testing.T, plan []step, want, got [][]string) {
	t.Helper()
	for r := range want {
		for k, s := range plan {
			if k >= len(want[r]) || k >= len(got[r]) {
				t.Errorf("rank %d ended after %d and %d of %d steps: %v", r, len(want[r]), len(got[r]), len(plan),
					got[r][max(len(got[r])-1, 0):])
				break
			}
			if want[r][k] != got[r][k] {
				t.Errorf("rank %d, step %d, %+v: %s, want %s", r, k, s, got[r][k], want[r][k])
			}
		}
	}
}

// TestEveryPosition has one Go rank or two in every position of worlds of two to five ranks.
func TestEveryPosition(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, size := range []int{2, 3, 4, 5} {
			plan := shortPlan(size)
			var want [][]string
			t.Run(fmt.Sprintf("ranks=%d,torch", size), func(t *testing.T) { want = world{size: size}.run(t, tr, plan) })
			var worlds []world
			for r := range size {
				if size != 4 {
					worlds = append(worlds, world{size: size, goRanks: []int{r}})
				}
				if size == 3 || size == 4 {
					worlds = append(worlds, world{size: size, goRanks: []int{r, (r + 1) % size}})
				}
			}
			for _, w := range worlds {
				t.Run(w.String(), func(t *testing.T) {
					t.Parallel()
					compare(t, plan, want, w.run(t, tr, plan))
				})
			}
		}
	})
}
