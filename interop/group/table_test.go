// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

var (
	allDTypes = []string{
		"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128",
		"bool", "bfloat16",
	}
	allReduces = []string{"sum", "product", "min", "max", "band", "bor", "bxor", "avg"}
	sizeNames  = []string{"0", "1", "odd", "over 1 MiB"}
	rootedOps  = []string{"broadcast", "gather", "scatter"}
	plainOps   = []string{
		"all_to_all", "all_gather", "all_gather_into_tensor", "all_to_all_single", "all_to_all_uneven",
		"all_reduce_coalesced", "ring",
	}
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
func table(about torchtest.About, ranks int) (cells []cell) {
	level, _, _ := torchcaps.Parse(about.Version)
	exclude := func(c cell) bool {
		switch {
		case level == torchcaps.V1_13:
			return c.op == "all_gather" && c.size == "0" || c.op == "all_gather_into_tensor" // a Go rank may pair it with all_gather
		case level < torchcaps.V2_9:
			return c.op == "reduce_scatter_tensor" && c.reduce != "sum"
		case !about.Has(torchtest.Halves) && (c.dtype == "float16" || c.dtype == "bfloat16"):
			return true // it cannot be told from outside that this build has no halves
		}
		// PyTorch exchanges the sum of integers before it finds that it cannot store their average.
		whole := !strings.HasPrefix(c.dtype, "float") && !strings.HasPrefix(c.dtype, "complex") && c.dtype != "int16" &&
			c.dtype != "bfloat16"
		return c.reduce == "avg" && whole
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
				if level >= torchcaps.V2_9 {
					add(cell{op: "reduce_scatter", dtype: dt, reduce: reduce, size: size})
				}
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
// each result bit by bit with an all-PyTorch world. What PyTorch refuses the Go rank must refuse too, and all ranks stay in
// step: they go on with the next cell. A cell without a result fails.
func TestTable(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		const ranks = 2
		cells := table(tr.About(t), ranks)
		var mu sync.Mutex
		filled := map[cell]string{}
		part := 0
		t.Run("parts", func(t *testing.T) {
			for chunk := range slices.Chunk(cells, 300) {
				goRank := part % ranks
				part++
				t.Run(fmt.Sprintf("part=%d,go=%d", part, goRank), func(t *testing.T) {
					t.Parallel()
					plan := make([]step, len(chunk))
					for i, c := range chunk {
						plan[i] = step{
							Op: c.op, N: count(c.size, c.dtype), DType: c.dtype, Reduce: c.reduce,
							Root: cohort.Rank(c.root), MayRefuse: true,
						}
					}
					want := world{size: ranks}.run(t, tr, plan)
					got := world{size: ranks, goRanks: []int{goRank}}.run(t, tr, plan)
					compare(t, plan, want, got)
					mu.Lock()
					defer mu.Unlock()
					for i, c := range chunk {
						if i < len(got[goRank]) && i < len(want[goRank]) {
							filled[c] = got[goRank][i]
						}
					}
				})
			}
		})
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

// TestRefusedInARow: whatever all ranks refuse, they stay in step, with and without a check of operations beforehand.
func TestRefusedInARow(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if tr.About(t).Since(2, 8) {
			tr.NotApplicable(t, "performs most of what this test has refused")
		}
		sum := func(n int) step { return step{Op: "all_reduce", N: n, DType: "float32"} }
		plan := []step{sum(5)}
		refused := func(op, dtype, reduce string) {
			plan = append(plan, step{Op: op, N: 4, DType: dtype, Reduce: reduce, Root: 1, MayRefuse: true})
		}
		for _, op := range []string{"all_reduce", "all_reduce_coalesced", "reduce"} {
			refused(op, "float32", "avg")
			refused(op, "int16", "sum")
			refused(op, "int16", "avg")
			refused(op, "float64", "band")
			refused(op, "complex64", "max")
			refused(op, "complex128", "bxor")
		}
		for _, op := range []string{"broadcast", "gather", "scatter", "all_gather", "all_to_all_single"} {
			refused(op, "int16", "")
		}
		refused("gather", "complex64", "")
		refused("broadcast", "complex64", "")
		for _, op := range []string{"reduce_scatter", "all_to_all"} {
			refused(op, "float32", "sum")
		}
		refused("reduce_scatter_tensor", "int16", "sum")
		if tr.Name == "1.13" {
			refused("reduce_scatter_tensor", "float32", "max")
		}
		if n := len(plan); n < 25 {
			t.Fatalf("%d steps", n)
		}
		// No plain barrier: PyTorch's raises an earlier refusal if it still finds it under way.
		tail := []step{{Op: "broadcast", N: 3, DType: "float32", Root: 1}, sum(7), {Op: "monitored_barrier"}, sum(9)}
		for _, detail := range []bool{false, true} {
			t.Run(fmt.Sprintf("detail=%v", detail), func(t *testing.T) {
				w, steps := world{size: 3}, slices.Clone(plan)
				if detail {
					w.env = detailEnv
					w.options = []group.Option{group.WithDetail()}
					steps = append(steps, tail[:2]...) // the check of 2.6 does not survive a monitored barrier
				} else {
					steps = append(steps, step{Op: "all_gather_uneven", N: 4, DType: "float32", MayRefuse: true}) // shapes that differ
					steps = append(steps, tail...)
				}
				want := w.run(t, tr, steps)
				for i, got := range want[0][:26] {
					if i > 0 && got != "refused" {
						t.Errorf("step %d (%+v): a world of PyTorch ranks says %q", i, steps[i], got)
					}
				}
				for _, ranks := range [][]int{{1}, {0, 2}} {
					w.goRanks = ranks
					compare(t, steps, want, w.run(t, tr, steps))
				}
			})
		}
	})
}

// performedSource is a PyTorch rank that performs what the Go rank refuses. It says how that ended, and after how many milliseconds.
const performedSource = `
import datetime, sys, time
import torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=120))
dist.all_reduce(torch.zeros(1))
began = time.time()
try:
    if sys.argv[4] == "max":
        dist.reduce_scatter_tensor(torch.zeros(4), torch.ones(4 * size), dist.ReduceOp.MAX)
    elif sys.argv[4] == "whole":
        dist.all_reduce(torch.ones(4, dtype=torch.int64), dist.ReduceOp.AVG)
    else:
        dist.all_reduce(torch.ones(4), dist.ReduceOp.AVG)
    print("performed", flush=True)
except RuntimeError as e:
    print(int(1000 * (time.time() - began)), str(e).splitlines()[0][-60:], flush=True)
`

// TestPerformedEndsTheGroup: what PyTorch's ranks perform, or some of them, and the Go rank refuses ends the group at once. 1.13 performs
// nothing that a Go rank refuses: see TestTable of internal/group/gloo/torchcaps.
func TestPerformedEndsTheGroup(t *testing.T) {
	largest := func(ctx context.Context, g *group.Group) error {
		in, out := tensor.Must(tensor.New(tensor.Float32, 16)), tensor.Must(tensor.New(tensor.Float32, 4))
		return g.ReduceScatterInto(ctx, out, in, group.Max).Wait(ctx)
	}
	average := func(dt tensor.DType) func(context.Context, *group.Group) error {
		return func(ctx context.Context, g *group.Group) error {
			return g.AllReduce(ctx, tensor.Must(tensor.New(dt, 4)), group.Avg).Wait(ctx)
		}
	}
	old, recent := torchtest.V26, torchtest.Newest
	for _, c := range []struct {
		name, call, why string
		torches         []*torchtest.Torch // of ranks 0, 2 and 3
		refused         func(context.Context, *group.Group) error
	}{
		{"torch-2.6", "max", "sums in reduce_scatter_tensor whatever the operator is", []*torchtest.Torch{old, old, old}, largest},
		{"torch-newest", "whole", "cannot store an average as int64", []*torchtest.Torch{recent, recent, recent}, average(tensor.Int64)},
		{
			"several", "average", "the other ranks use PyTorch 2.6 and 2.14, which do not agree",
			[]*torchtest.Torch{old, recent, recent},
			average(tensor.Float32),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world{size: 4, goRanks: []int{1}, torches: map[int]*torchtest.Torch{0: c.torches[0], 2: c.torches[1], 3: c.torches[2]}}
			for _, tr := range c.torches {
				tr.Need(t)
			}
			port := testkit.FreePort(t)
			procs := w.startTorch(t, nil, port, performedSource, c.call)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			g := w.joinGo(ctx, t, port)[1]
			if err := group.AllReduceSlice(ctx, g, []float32{0}, group.Sum); err != nil {
				t.Fatal(err)
			}
			if err := c.refused(ctx, g); !errors.Is(err, cohort.NotSupported) || g.Err() == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("refused with %v, the group says %v", err, g.Err())
			}
			for r, p := range procs {
				var after int
				line := p.Line(t)
				t.Logf("rank %d, %s: %s", r, p.Torch.Name, line)
				if _, err := fmt.Sscan(line, &after); err != nil || after > 30_000 {
					t.Errorf("rank %d: %q", r, line)
				}
			}
		})
	}
}
