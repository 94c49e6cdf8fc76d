// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

var detailEnv = map[string]string{"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}

// detailPlan is shortPlan without what PyTorch's own check cannot bear: PyTorch 2.x counts messages, so that after messages
// or a monitored barrier in which ranks have different parts, every later check reports a mismatch.
func detailPlan(size int, version string, halves bool) []step {
	var plan []step
	for _, s := range shortPlan(size) {
		if size > 2 && (s.Op == "any" || s.Op == "monitored_barrier") {
			continue
		}
		plan = append(plan, s)
	}
	types := []string{"float64", "int8", "uint8", "int32"}
	if halves {
		types = append(types, "float16")
	}
	for _, dt := range types {
		plan = append(plan, step{Op: "all_reduce", N: 3, DType: dt}, step{Op: "all_gather", N: 3, DType: dt})
	}
	if version != "1.13" && halves {
		plan = append(plan, step{Op: "all_reduce", N: 3, DType: "bfloat16"})
	}
	if version != "1.13" {
		plan = append(plan,
			step{Op: "broadcast", N: 3, DType: "bool"},
			step{Op: "all_gather_into_tensor", N: 5, DType: "float32"}, step{Op: "reduce_scatter_tensor", N: 5, DType: "float32"},
			step{Op: "all_reduce", N: 3, DType: "complex64"}, step{Op: "all_gather", N: 3, DType: "complex128"})
	}
	return plan
}

// TestDetail runs worlds in which every collective is checked beforehand.
func TestDetail(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, size := range []int{2, 3} {
			plan := detailPlan(size, tr.Name, tr.About(t).Has(torchtest.Halves))
			var want [][]string
			t.Run(fmt.Sprintf("ranks=%d,torch", size), func(t *testing.T) { want = world{size: size, env: detailEnv}.run(t, tr, plan) })
			worlds := [][]int{{0}, {1}}
			if size == 3 {
				worlds = [][]int{{0}, {1}, {2}, {0, 2}}
			}
			for _, goRanks := range worlds {
				w := world{size: size, goRanks: goRanks, env: detailEnv, options: []group.Option{group.WithDetail()}}
				t.Run(w.String(), func(t *testing.T) {
					t.Parallel()
					compare(t, plan, want, w.run(t, tr, plan))
				})
			}
		}
	})
}

// detailSource is a PyTorch rank that calls what it is told, prints what came of it, and goes on.
const detailSource = `
import sys, os, datetime, torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.set_debug_level_from_env()
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=20))
def run(name, f):
    try:
        f()
        print(name, "ok", flush=True)
    except RuntimeError as e:
        print(name, "error", str(e).replace("\n", " "), flush=True)
run("same", lambda: dist.all_reduce(torch.ones(2, 3)))
run("shape", lambda: dist.all_reduce(torch.ones(2, 3)))
run("type", lambda: dist.all_reduce(torch.ones(6)))
run("dimensions", lambda: dist.all_reduce(torch.ones(6)))
run("operation", lambda: dist.broadcast(torch.ones(6), 0))
run("barrier", lambda: dist.barrier())
run("again", lambda: dist.all_reduce(torch.ones(2, 3)))
os._exit(0)
`

// TestDetailNamesBothSides: a rank that calls something else gets an error that names both, so do the PyTorch ranks, and the
// group goes on.
func TestDetailNamesBothSides(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, goRank := range []int{0, 2} {
			w := world{size: 3, goRanks: []int{goRank}, env: detailEnv, options: []group.Option{group.WithDetail()}}
			t.Run(w.String(), func(t *testing.T) {
				port := testkit.FreePort(t)
				procs := w.startTorch(t, tr, port, detailSource)
				g := w.joinGo(ctx, t, port)[goRank]
				ones := func(dt tensor.DType, dims ...int) *tensor.Tensor { return tensor.Must(tensor.New(dt, dims...)) }
				for _, c := range []struct {
					name string
					call func() *group.Work
					want []string // in our error; none where it must succeed
				}{
					{"same", func() *group.Work { return g.AllReduce(ctx, ones(tensor.Float32, 2, 3), group.Sum) }, nil},
					{
						"shape", func() *group.Work { return g.AllReduce(ctx, ones(tensor.Float32, 3, 2), group.Sum) },
						[]string{"all_reduce(float32[3 2])", "all_reduce(float32[2 3])"},
					},
					{
						"type", func() *group.Work { return g.AllReduce(ctx, ones(tensor.Float64, 6), group.Sum) },
						[]string{"float64[6]", "float32[6]"},
					},
					{
						"dimensions", func() *group.Work { return g.AllReduce(ctx, ones(tensor.Float32, 3, 2), group.Sum) },
						[]string{"float32[3 2]", "dimensions"},
					},
					{
						"operation", func() *group.Work { return g.AllReduce(ctx, ones(tensor.Float32, 6), group.Sum) },
						[]string{"all_reduce(float32[6])", "broadcast(float32[6])"},
					},
					{"barrier", func() *group.Work { return g.Barrier(ctx) }, nil},
					{"again", func() *group.Work { return g.AllReduce(ctx, ones(tensor.Float32, 2, 3), group.Sum) }, nil},
				} {
					before := g.Seq()
					err := c.call().Wait(ctx)
					if c.want == nil {
						if err != nil {
							t.Fatalf("%s: %v", c.name, err)
						}
					} else {
						var e *cohort.Error
						if !errors.As(err, &e) || e.Code != cohort.Mismatch || int(e.Rank) == goRank || g.Seq() != before {
							t.Fatalf("%s: %v, sequence %d after %d", c.name, err, g.Seq(), before)
						}
						for _, text := range append(c.want, fmt.Sprintf("rank %d runs", goRank), fmt.Sprintf("rank %d runs", int(e.Rank))) {
							if !strings.Contains(err.Error(), text) {
								t.Errorf("%s: no %q in %v", c.name, text, err)
							}
						}
					}
					for r, p := range procs {
						line := p.Line(t)
						switch {
						case c.want == nil && line != c.name+" ok":
							t.Errorf("rank %d: %s", r, line)
						case c.want != nil && (!strings.HasPrefix(line, c.name+" error") ||
							!strings.Contains(line, "Detected mismatch between collectives") ||
							!strings.Contains(line, fmt.Sprintf("Rank %d", goRank))):
							t.Errorf("rank %d: %s", r, line)
						}
					}
				}
				for _, p := range procs {
					p.MustExit(t, 20*time.Second)
				}
			})
		}
	})
}

// TestDetailNotConfigured: a rank that was not told that the others check operations finds out instead of waiting for ever.
func TestDetailNotConfigured(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w := world{size: 2, goRanks: []int{1}, env: detailEnv}
		port := testkit.FreePort(t)
		w.startTorch(t, tr, port, loopSource)
		began := time.Now()
		g, err := w.tryJoin(ctx, t, port, 1)
		if err == nil { // PyTorch 2.x: the group is there, its first operation is not
			began = time.Now()
			err = group.AllReduceSlice(ctx, g, make([]float32, 5), group.Sum)
		}
		if took := time.Since(began); err == nil || took > 20*time.Second && tr.Name != "1.13" {
			t.Fatalf("after %v: %v", took, err)
		}
		var e *cohort.Error
		if !errors.As(err, &e) || e.Code != cohort.Mismatch || e.Rank != 0 ||
			!strings.Contains(err.Error(), "TORCH_DISTRIBUTED_DEBUG=DETAIL") {
			t.Errorf("%v", err)
		}
	})
}

// countSource sends one message and reduces: ranks have different parts in the message.
const countSource = `
import sys, os, datetime, torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.set_debug_level_from_env()
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=20))
dist.barrier()
if rank == 0:
    dist.recv(torch.ones(3), 1)
if rank == 1:
    dist.send(torch.ones(3), 0)
def reduce():
    try:
        dist.all_reduce(torch.ones(3))
        print("ok", flush=True)
    except RuntimeError as e:
        print("mismatch" if "mismatch" in str(e) and "CollectiveFingerPrint" in str(e) else str(e), flush=True)
reduce()
dist.monitored_barrier()
reduce()
os._exit(0)
`

// TestDetailCountsAsPyTorch: PyTorch 2.x counts messages in its fingerprints, so that a message between two of three ranks
// makes the next check fail. A Go rank counts in the same way.
func TestDetailCountsAsPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var want [][]string
		for _, goRanks := range [][]int{nil, {0}, {1}, {2}} {
			w := world{size: 3, goRanks: goRanks, env: detailEnv, options: []group.Option{group.WithDetail()}}
			t.Run(w.String(), func(t *testing.T) {
				port := testkit.FreePort(t)
				procs := w.startTorch(t, tr, port, countSource)
				got := make([][]string, w.size)
				for r, g := range w.joinGo(ctx, t, port) {
					got[r] = countOnGo(ctx, t, g)
				}
				for r, p := range procs {
					got[r] = []string{p.Line(t), p.Line(t)}
					p.MustExit(t, 20*time.Second)
				}
				if want == nil {
					want = got
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v, an all-PyTorch world says %v", got, want)
				}
			})
		}
		if first := fmt.Sprint(want[0]); tr.Name == "2.6" && first != "[mismatch mismatch]" || tr.Name == "1.13" && first != "[ok ok]" {
			t.Errorf("an all-PyTorch world says %v", want)
		}
	})
}

func countOnGo(ctx context.Context, t *testing.T, g *group.Group) []string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x := tensor.Must(tensor.New(tensor.Float32, 3))
	must(g.Barrier(ctx).Wait(ctx))
	switch g.Rank() {
	case 0:
		must(g.Recv(ctx, x, 1, 0).Wait(ctx))
	case 1:
		must(g.Send(ctx, x, 0, 0).Wait(ctx))
	}
	reduce := func() string {
		switch err := g.AllReduce(ctx, x, group.Sum).Wait(ctx); {
		case err == nil:
			return "ok"
		case errors.Is(err, cohort.Mismatch):
			return "mismatch"
		default:
			return err.Error()
		}
	}
	got := []string{reduce()}
	must(g.MonitoredBarrier(ctx))
	return append(got, reduce())
}

// TestDetailComplex: PyTorch's check sees complex numbers as pairs of real ones in some operations and as they are in others, whether
// they are performed or refused.
func TestDetailComplex(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if tr == torchtest.V113 {
			tr.NotApplicable(t, "checks no more than the order of operations")
		}
		ops := []string{
			"broadcast", "reduce", "reduce_scatter_tensor", "gather", "scatter", "all_reduce", "all_gather",
			"all_gather_into_tensor", "all_to_all_single",
		}
		if tr.About(t).Since(2, 12) {
			ops = append(ops, "reduce_scatter", "all_to_all")
		}
		var plan []step
		for _, op := range ops {
			plan = append(plan, step{Op: op, N: 4, DType: "complex64", MayRefuse: true})
		}
		plan = append(plan, step{Op: "all_reduce", N: 3, DType: "float32"})
		w := world{size: 2, env: detailEnv, options: []group.Option{group.WithDetail()}}
		want := w.run(t, tr, plan)
		w.goRanks = []int{1}
		compare(t, plan, want, w.run(t, tr, plan))
	})
}
