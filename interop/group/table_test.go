// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/internal/torchtest"
)

var (
	allDTypes  = []string{"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128", "bool", "bfloat16"}
	allReduces = []string{"sum", "product", "min", "max", "band", "bor", "bxor", "avg"}
	sizeNames  = []string{"0", "1", "odd", "over 1 MiB"}
	rootedOps  = []string{"broadcast", "gather", "scatter"}
	plainOps   = []string{"all_gather", "all_gather_into_tensor", "all_to_all_single", "all_to_all_uneven", "all_reduce_coalesced", "ring"}
)

// cell is one entry of the table: what must have been run in the mixed world and in the all-PyTorch world.
type cell struct {
	op, dtype, reduce, size string
	root                    int
}

func count(size, dtype string) int {
	switch size {
	case "0":
		return 0
	case "1":
		return 1
	case "odd":
		return 1001
	}
	return 1<<20/dtypeOf(dtype).Size() + 7
}

// table lists every cell. exclude says which cells must not be run against a version because the PyTorch side would
// crash, or would compute something else than it was asked for: those the Go rank refuses on its own.
func table(version string, ranks int) (cells []cell) {
	exclude := func(c cell) bool {
		if version == "1.13" {
			return c.op == "all_gather" && c.size == "0" || c.op == "all_gather_into_tensor" // a Go rank may pair it with all_gather
		}
		return c.op == "reduce_scatter_tensor" && c.reduce != "sum"
	}
	add := func(c cell) {
		if !exclude(c) {
			cells = append(cells, c)
		}
	}
	for _, dt := range allDTypes {
		for _, size := range sizeNames {
			for _, reduce := range allReduces {
				add(cell{op: "all_reduce", dtype: dt, reduce: reduce, size: size})
				add(cell{op: "reduce_scatter_tensor", dtype: dt, reduce: reduce, size: size})
				for root := range ranks {
					add(cell{op: "reduce", dtype: dt, reduce: reduce, size: size, root: root})
				}
			}
			for _, op := range rootedOps {
				for root := range ranks {
					add(cell{op: op, dtype: dt, size: size, root: root})
				}
			}
			for _, op := range plainOps {
				add(cell{op: op, dtype: dt, size: size})
			}
		}
	}
	return cells
}

// TestTable runs every operation with every element type, operator, root and size in a world with a Go rank, and compares
// each result bit by bit with an all-PyTorch world. What PyTorch refuses the Go rank must refuse too, without taking a
// sequence number. (PyTorch itself takes one for an element type or operator that gloo does not have, since it notices in
// its worker thread; so the PyTorch ranks are not asked again in the mixed world.) A cell without a result fails.
func TestTable(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		const ranks = 2
		cells := table(tr.Name, ranks)
		filled := map[cell]string{}
		part := 0
		for chunk := range slices.Chunk(cells, 300) {
			goRank := part % ranks
			part++
			t.Run(fmt.Sprintf("part=%d,go=%d", part, goRank), func(t *testing.T) {
				plan := make([]step, len(chunk))
				for i, c := range chunk {
					plan[i] = step{Op: c.op, N: count(c.size, c.dtype), DType: c.dtype, Reduce: c.reduce, Root: c.root, MayRefuse: true}
				}
				want := world{size: ranks}.run(t, tr, plan)
				for i := range plan {
					plan[i].GoOnly = len(want[0]) > i && want[0][i] == "refused"
				}
				got := world{size: ranks, goRanks: []int{goRank}}.run(t, tr, plan)
				compare(t, plan, want, got)
				for i, c := range chunk {
					if i < len(got[goRank]) && i < len(want[goRank]) {
						filled[c] = got[goRank][i]
					}
				}
			})
		}
		refused := 0
		for _, c := range cells {
			switch filled[c] {
			case "":
				t.Errorf("empty cell: %+v", c)
			case "refused":
				refused++
			}
		}
		t.Logf("%d cells, %d of them refused by both sides", len(cells), refused)
	})
}

// TestRefusedAlone holds what PyTorch would compute wrongly or die of: the Go rank refuses it, and the ranks stay in step.
func TestRefusedAlone(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{
			{Op: "all_reduce", N: 5, DType: "float32"},
			{Op: "reduce_scatter_tensor", N: 4, DType: "float32", Reduce: "max", GoOnly: true},
			{Op: "all_reduce", N: 5, DType: "int16", GoOnly: true},
			{Op: "all_reduce", N: 5, DType: "float32", Reduce: "avg", GoOnly: true},
			{Op: "all_reduce", N: 7, DType: "float32"},
		}
		if tr.Name == "1.13" {
			plan = append(plan, step{Op: "all_gather", N: 0, DType: "float32", GoOnly: true}, step{Op: "all_gather", N: 2, DType: "float32"})
		}
		want := world{size: 2}.run(t, tr, plan)
		compare(t, plan, want, world{size: 2, goRanks: []int{1}}.run(t, tr, plan))
	})
}
