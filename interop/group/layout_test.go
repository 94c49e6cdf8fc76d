// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// layoutSource is a PyTorch rank whose tensors are transposed, and says which operations gave another result than the same
// operation on contiguous tensors.
const layoutSource = `
import datetime, sys
import torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
def matrix(start, factor=1):
    return (torch.arange(12.) * factor + start).reshape(4, 3).t()
wrong = []
x = matrix(100 * rank); dist.all_reduce(x)
if not torch.equal(x, matrix(100 * sum(range(size)), size)): wrong.append("all_reduce")
for root in range(size):
    x = matrix(100 * rank); dist.broadcast(x, root)
    if not torch.equal(x, matrix(100 * root)): wrong.append(f"broadcast from {root}")
    x = matrix(100 * rank); dist.reduce(x, root)
    if rank == root and not torch.equal(x, matrix(100 * sum(range(size)), size)): wrong.append(f"reduce to {root}")
    x = matrix(0); dist.scatter(x, [matrix(7 * r) for r in range(size)] if rank == root else None, root)
    if not torch.equal(x, matrix(7 * rank)): wrong.append(f"scatter from {root}")
    outs = [matrix(0) for _ in range(size)]; dist.all_gather(outs, matrix(100 * rank))
    if not all(torch.equal(outs[r], matrix(100 * r)) for r in range(size)): wrong.append("all_gather")
if rank == 0:  # send and recv refuse what is not contiguous
    for name, op in ("send", dist.send), ("recv", dist.recv):
        try: op(matrix(0), 1); wrong.append(name)
        except RuntimeError as e:
            if "contiguous" not in str(e): wrong.append(f"{name}: {e}")
    x = torch.empty(3, 4); dist.recv(x, 1); dist.send(x, 1)
    if not torch.equal(x, matrix(300)): wrong.append("recv of what was transposed")
print("wrong:", wrong, flush=True)
dist.barrier()
`

// TestTransposedTensors: ranks whose tensors have the same layout get what they get with contiguous ones. PyTorch sends
// and receives no others, so that messages of a Go rank's transposed tensors are in the order of their indices.
func TestTransposedTensors(t *testing.T) {
	matrix := func(start, factor int) *tensor.Tensor {
		x := make([]float32, 12)
		for i := range x {
			x[i] = float32(i*factor + start)
		}
		return tensor.Must(tensor.Must(tensor.From(x, 4, 3)).Transpose(0, 1))
	}
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		w := world{size: 3, goRanks: []int{1}}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		port := testkit.FreePort(t)
		procs := w.startTorch(t, tr, port, layoutSource)
		g := w.joinGo(ctx, t, port)[1]
		me := int(g.Rank())
		check := func(what string, work *group.Work, got, want *tensor.Tensor) {
			t.Helper()
			if err := work.Wait(ctx); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if !tensor.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		total := matrix(300, w.size)
		x := matrix(100*me, 1)
		check("all_reduce", g.AllReduce(ctx, x, group.Sum), x, total)
		for root := range w.size {
			x := matrix(100*me, 1)
			check("broadcast", g.Broadcast(ctx, x, cohort.Rank(root)), x, matrix(100*root, 1))
			x, want := matrix(100*me, 1), total
			work := g.Reduce(ctx, x, group.Sum, cohort.Rank(root))
			if me != root {
				want = x // whatever is left there
			}
			check("reduce", work, x, want)
			x = matrix(0, 1)
			var ins []*tensor.Tensor
			if me == root {
				ins = []*tensor.Tensor{matrix(0, 1), matrix(7, 1), matrix(14, 1)}
			}
			check("scatter", g.Scatter(ctx, x, ins, cohort.Rank(root)), x, matrix(7*me, 1))
			outs := []*tensor.Tensor{matrix(0, 1), matrix(0, 1), matrix(0, 1)}
			check("all_gather", g.AllGather(ctx, outs, matrix(100*me, 1)), outs[2], matrix(200, 1))
		}
		received := matrix(0, 1)
		check("send", g.Send(ctx, matrix(300, 1), 0, 0), received, received)
		check("recv", g.Recv(ctx, received, 0, 0), received, matrix(300, 1))
		for _, p := range procs {
			if line := p.Line(t); line != "wrong: []" {
				t.Errorf("PyTorch: %s", line)
			}
		}
		if err := g.Barrier(ctx).Wait(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLazyConnections has Go ranks among PyTorch ranks that connect at the first use of a pair, name themselves by their rank, or read
// the store in another way. A Go rank connects at once, which such ranks take; some pairs are not used before the end.
func TestLazyConnections(t *testing.T) {
	torchtest.Newest.Need(t)
	plan := []step{
		{Op: "broadcast", N: 5, DType: "float32", Root: 2},
		{Op: "ring", N: 3, DType: "float32"},
		{Op: "new_group", Name: "pair", Ranks: []int{1, 3}},
		{Op: "all_reduce", N: 70000, DType: "float64", Group: "pair"},
		{Op: "all_reduce", N: 1000, DType: "float32"},
		{Op: "gather", N: 3, DType: "int64", Root: 1},
		{Op: "all_to_all_single", N: 4, DType: "float32"},
		{Op: "barrier"},
	}
	want := world{size: 4}.run(t, torchtest.Newest, plan)
	for _, variable := range []string{"TORCH_GLOO_LAZY_INIT", "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER", "GLOO_ENABLE_STORE_V2_API"} {
		for _, goRanks := range [][]int{{0}, {1, 3}, {0, 1, 2}} {
			w := world{size: 4, goRanks: goRanks, env: map[string]string{variable: "1"}, unversioned: true}
			t.Run(fmt.Sprint(variable, " ", w), func(t *testing.T) { compare(t, plan, want, w.run(t, torchtest.Newest, plan)) })
		}
	}
}
