// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

const limit = 30 * time.Second

// everyOp has every operation once, small, with each rank as root.
func everyOp(tr *torchtest.Torch, size int) []step {
	unrooted := []string{"all_reduce", "all_gather", "all_to_all", "all_to_all_v", "barrier", "monitored_barrier"}
	if tr.Name != "1.13" {
		unrooted = append(unrooted, "reduce_scatter")
	}
	var plan []step
	for _, op := range unrooted {
		plan = append(plan, step{Op: op, DType: "float32", N: 13})
	}
	for root := range size {
		for _, op := range []string{"broadcast", "reduce", "gather", "scatter"} {
			plan = append(plan, step{Op: op, DType: "float32", N: 13, Root: root})
		}
		plan = append(plan, step{Op: "recv_any", DType: "float32", N: 13, Root: root, Tag: 40 + root})
	}
	return append(plan, step{Op: "ring", DType: "float32", N: 13, Tag: 5}, step{Op: "barrier"})
}

// TestEveryPosition puts one and two Go ranks into every position of worlds of 2 to 5 ranks.
func TestEveryPosition(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for size := 2; size <= 5; size++ {
			plan := everyOp(tr, size)
			want := world(t, tr, size, nil, plan, limit, nil, nil)
			var positions [][]int
			for a := range size {
				positions = append(positions, []int{a})
				for b := a + 1; b < size && size > 2; b++ {
					positions = append(positions, []int{a, b})
				}
			}
			for _, gos := range positions {
				t.Run(fmt.Sprintf("size-%d-go-%v", size, gos), func(t *testing.T) {
					compare(t, plan, want, world(t, tr, size, gos, plan, limit, nil, nil))
				})
			}
		}
	})
}

// compare fails for every step whose result differs from the all-PyTorch world's.
func compare(t *testing.T, plan []step, want, got [][]string) {
	t.Helper()
	for r := range want {
		for i := range plan {
			if want[r][i] != got[r][i] {
				t.Errorf("rank %d, step %d (%s): all-PyTorch %s, with Go %s", r, i, plan[i], want[r][i], got[r][i])
			}
		}
	}
}

// sizes has nothing, one element, an odd number, and more than 1 MiB.
func sizes(dtype string, size int) []int {
	if dtype != "float32" && size != 3 {
		return []int{0, 1, 13} // the rest is the part of the world of three
	}
	return []int{0, 1, 13, 1_100_001 / dtypes[dtype].Size()}
}

// manySegments is a number of float32 elements that gloo's rings cut into more than two segments per rank, because a
// segment has at most 1 MiB.
func manySegments(size int) int { return (2*size<<20 + 300_000) / 4 }

func typesOf(t *testing.T, tr *torchtest.Torch, size int) []string {
	t.Helper()
	if size > 3 {
		return []string{"float32", "int64"} // the other types are the smaller worlds' part
	}
	types := []string{"float32", "float64", "int8", "uint8", "int32", "int64"}
	halves := tr.About(t).Has(torchtest.Halves)
	if halves {
		types = append(types, "float16")
	}
	if tr.Name != "1.13" {
		types = append(types, "bool")
		if halves {
			types = append(types, "bfloat16")
		}
	}
	return types
}

// checkTable fails for every cell of operation x dtype x root x size that the plan leaves empty.
func checkTable(t *testing.T, tr *torchtest.Torch, size int, plan []step) {
	t.Helper()
	type cell struct {
		op, dtype string
		n, root   int
	}
	have := map[cell]bool{}
	for _, s := range plan {
		have[cell{s.Op, s.DType, s.N, s.Root}] = true
	}
	want := func(c cell) {
		if c.op == "all_gather" && c.n == 0 && tr.Name == "1.13" {
			return // gloo of 1.13 divides by zero
		}
		if !have[c] {
			t.Errorf("nothing tests %+v", c)
		}
	}
	unrooted := []string{"all_reduce", "all_gather", "all_to_all", "all_to_all_v"}
	if tr.Name != "1.13" {
		unrooted = append(unrooted, "reduce_scatter")
	}
	for _, dtype := range typesOf(t, tr, size) {
		for _, n := range sizes(dtype, size) {
			for _, op := range unrooted {
				want(cell{op, dtype, n, 0})
			}
			for root := range size {
				for _, op := range []string{"broadcast", "reduce", "gather", "scatter"} {
					want(cell{op, dtype, n, root})
				}
			}
		}
	}
}

// everyCollective is a table of operation x dtype x root x size.
func everyCollective(t *testing.T, tr *torchtest.Torch, size int) []step {
	t.Helper()
	var plan []step
	for _, dtype := range typesOf(t, tr, size) {
		reds := []string{"SUM", "PRODUCT", "MIN", "MAX"}
		switch dtype {
		case "int8", "uint8", "int32", "int64":
			reds = append(reds, "BAND", "BOR", "BXOR")
		case "bool":
			reds = []string{"SUM", "MAX"}
		}
		for _, n := range sizes(dtype, size) {
			for k, red := range reds {
				if n > 1000 && k > 0 {
					continue // the kernels are the same
				}
				plan = append(plan, step{Op: "all_reduce", DType: dtype, N: n, Red: red})
				plan = append(plan, step{Op: "reduce", DType: dtype, N: n, Red: red, Root: k % size})
			}
			for root := range size {
				plan = append(plan,
					step{Op: "broadcast", DType: dtype, N: n, Root: root},
					step{Op: "reduce", DType: dtype, N: n, Root: root},
					step{Op: "gather", DType: dtype, N: n, Root: root},
					step{Op: "scatter", DType: dtype, N: n, Root: root})
			}
			if n > 0 || tr.Name != "1.13" { // gloo of 1.13 divides by zero
				plan = append(plan, step{Op: "all_gather", DType: dtype, N: n})
			}
			plan = append(plan, step{Op: "all_to_all", DType: dtype, N: n}, step{Op: "all_to_all_v", DType: dtype, N: n})
			if tr.Name != "1.13" {
				plan = append(plan, step{Op: "reduce_scatter", DType: dtype, N: n})
			}
		}
	}
	large := manySegments(size)
	plan = append(plan,
		step{Op: "all_reduce", DType: "float32", N: large},
		step{Op: "reduce", DType: "float32", N: large},
		step{Op: "reduce", DType: "float32", N: large, Root: size - 1},
		step{Op: "all_gather", DType: "float32", N: large},
	)
	for root := range size {
		plan = append(plan, step{Op: "recv_any", DType: "float32", N: 1000, Root: root, Tag: 40 + root})
	}
	return append(plan,
		step{Op: "barrier"},
		step{Op: "ring", DType: "float32", N: 1_000_000, Tag: 5},
		step{Op: "ring", DType: "int8", N: 1, Tag: 6},
		step{Op: "monitored_barrier"},
		step{Op: "overlap", DType: "float32", N: 1000, Count: 6},
		step{Op: "overlap", DType: "float32", N: 300_000, Count: 4},
		step{Op: "barrier"},
		step{Op: "sub_groups", DType: "float32", N: 1000, Pairs: pairsOf(size)},
		step{Op: "barrier"},
	)
}

func pairsOf(size int) [][]int {
	var pairs [][]int
	for a := range size {
		for b := a + 1; b < size; b++ {
			pairs = append(pairs, []int{a, b})
		}
	}
	return pairs
}

// TestEveryCollective compares worlds with Go ranks with an all-PyTorch world, bit by bit. The world of three has the longest plan: each
// version has its Go rank in another place. TestEveryPosition has all places with every version.
func TestEveryCollective(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		place := slices.Index(torchtest.Installations(), tr) % 3
		for _, c := range []struct {
			size int
			gos  [][]int
		}{
			{2, [][]int{{0}, {1}}},
			{3, [][]int{{place}}},
			{4, [][]int{{1, 3}}},
			{5, [][]int{{0, 4}}},
		} {
			plan := everyCollective(t, tr, c.size)
			checkTable(t, tr, c.size, plan)
			want := world(t, tr, c.size, nil, plan, limit, nil, nil)
			for _, gos := range c.gos {
				t.Run(fmt.Sprintf("size-%d-go-%v", c.size, gos), func(t *testing.T) {
					compare(t, plan, want, world(t, tr, c.size, gos, plan, limit, nil, nil))
				})
			}
		}
	})
}
