// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/tensor"
)

// TestProfiledCalls: PyTorch's profiler shows what ran in a Go worker, and a Go caller gets PyTorch's events.
func TestProfiledCalls(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		reg := mergedHandlers().MustHandle("gostub.spans", func(ctx context.Context) (int, error) {
			defer rpc.RecordFunction(ctx, "load rows")()
			time.Sleep(time.Millisecond)
			return rpc.Call[int](ctx, rpc.AgentFrom(ctx), "py0", "operator.add", 40, 2)
		})
		set = stubSettings(set)
		w := start(t, tr, set, torchWorker("py0", `
import gostub, torch.autograd.profiler_legacy as legacy
def spans(): pass
spans.__module__, spans.__qualname__ = "gostub", "spans"
gostub.spans = spans
def events(prof):
    return {e.name: e for e in prof.function_events}
with legacy.profile() as prof:
    eq(rpc.rpc_sync("go1", gostub.echo, args=(6,)), 6)
    teq(rpc.rpc_async("go1", torch.add, args=(torch.ones(2), 1)).wait(), torch.full((2,), 2.))
    eq(rpc.rpc_sync("go1", gostub.spans), 42)
    with dist_autograd.context() as ctx:
        teq(rpc.rpc_sync("go1", gostub.scale, args=(torch.ones(3, requires_grad=True), 2.0)).detach(), torch.full((3,), 2.))
    try:
        rpc.rpc_sync("go1", gostub.fail, args=("ValueError", "inside"))
        raise SystemExit("no exception")
    except ValueError as e:
        assert "inside" in str(e)
got = events(prof)
def remote(call, what, node):
    name = call + "#remote_op: " + what
    assert name in got, (name, sorted(got))
    e = got[name]
    assert e.is_remote and e.node_id == node, (name, e.is_remote, e.node_id)
    assert 0 <= e.time_range.start <= e.time_range.end, (name, e.time_range)
    c = got[call]
    assert c.time_range.start <= e.time_range.start and e.time_range.end <= c.time_range.end, (call, c.time_range, e.time_range)
    return e
remote("rpc_sync#echo(py0 -> go1)", "gostub.echo", 1)
remote("rpc_async#aten::add(py0 -> go1)", "aten::add", 1)
remote("rpc_sync#scale(py0 -> go1)", "gostub.scale", 1)
call = "rpc_sync#spans(py0 -> go1)"
assert remote(call, "load rows", 1).cpu_time >= 900, got
remote(call, "gostub.spans", 1)
remote(call, "rpc_sync#operator.add(go1 -> py0)", 1)
prof.key_averages().table()
# The newer profiler sees the caller alone, as among PyTorch workers.
with torch.autograd.profiler.profile() as prof:
    eq(rpc.rpc_sync("go1", gostub.echo, args=(6,)), 6)
`), goWorker("go1", reg, operators.Serve()))
		w.run()
		ctx, p := rpc.WithProfile(t.Context())
		if _, err := rpc.Call[*tensor.Tensor](ctx, w.agents["go1"], "py0",
			"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
			tensor.Must(tensor.From([]float32{1, 2}, 2)), tensor.Must(tensor.From([]float32{1, 2}, 2)), 1); err != nil {
			t.Fatal(err)
		}
		if n, err := rpc.Call[int](ctx, w.agents["go1"], "py0", "operator.add", 40, 2); n != 42 || err != nil {
			t.Fatal(n, err)
		}
		events := p.Events()
		at := slices.IndexFunc(events, func(e rpc.ProfileEvent) bool { return strings.HasSuffix(e.Name, "#remote_op: aten::add") })
		if at < 0 || events[at].Worker != 0 || events[at].Duration <= 0 || !strings.HasPrefix(events[at].Name, "rpc_sync#aten::add") {
			t.Errorf("no aten::add at worker 0 in\n%v", p)
		}
		if !slices.ContainsFunc(events, func(e rpc.ProfileEvent) bool {
			return e.Name == "rpc_sync#operator.add(go1 -> py0)" && e.Worker == 1
		}) {
			t.Errorf("the call of operator.add is not in\n%v", p)
		}
		w.stop()
	})
}
