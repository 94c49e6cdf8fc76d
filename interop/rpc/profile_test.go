// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
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

// TestLaterElementTypes sends the element types that PyTorch 2 has added, and views that it computes lazily: every value
// is read, and nothing is sent that could end an older process.
func TestLaterElementTypes(t *testing.T) {
	const stub = `
def echo(x): raise NotImplementedError
def numbers(x): raise NotImplementedError
def made(): raise NotImplementedError
def same(x): return x
`
	script := `
import gostub
for name in ["complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]:
    dt = getattr(torch, name, None)
    if dt is None:
        continue
    size = torch.empty(0, dtype=dt).element_size()
    x = torch.arange(16 * size, dtype=torch.uint8).view(dt).reshape(4, 4)
    y = rpc.rpc_sync("go1", gostub.echo, args=(x.t(),))
    assert y.dtype == dt and y.stride() == (1, 4), (name, y)
    eq(y.t().reshape(-1).view(torch.uint8).tolist(), x.reshape(-1).view(torch.uint8).tolist())
    if name.startswith("float8"):
        x = torch.arange(256, dtype=torch.uint8).view(dt)
        y = rpc.rpc_sync("go1", gostub.numbers, args=(x,))
        assert torch.allclose(y, x.float(), rtol=0, atol=0, equal_nan=True), name
x = torch.tensor([1 + 2j, 3 - 1j]).conj()
teq(rpc.rpc_sync("go1", gostub.echo, args=(x,)), rpc.rpc_sync("py0", gostub.same, args=(x,)))
teq(rpc.rpc_sync("go1", gostub.echo, args=(x.imag,)), rpc.rpc_sync("py0", gostub.same, args=(x.imag,)))
`
	reg := rpc.NewRegistry().
		MustHandle("gostub.echo", func(x any) any { return x }).
		MustHandle("gostub.numbers", func(x *tensor.Tensor) (*tensor.Tensor, error) {
			out := make([]float32, x.Numel())
			for i := range out {
				v, err := x.At(i)
				if err != nil {
					return nil, err
				}
				out[i], _ = v.(float32)
			}
			return tensor.Of(out)
		}).
		MustHandle("gostub.made", func() *tensor.Tensor { return tensor.Must(tensor.Of([]uint16{1, 65535})) })
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		set := settings{static: true, tolerant: true, modules: map[string]string{"gostub": stub}}
		w := start(t, tr, set, torchWorker("py0", `
import gostub
try:
    rpc.rpc_sync("go1", gostub.made)
    raise SystemExit("no exception")
except RuntimeError as e:
    assert "WithElementTypes" in str(e), str(e)
`+script), goWorker("go1", reg))
		a, ctx, x := w.agents["go1"], testContext(t), tensor.Must(tensor.Of([]uint16{1, 65535}))
		if _, err := rpc.Call[any](ctx, a, "py0", "gostub.same", x); !errors.Is(err, cohort.NotSupported) {
			t.Errorf("to a worker of unknown version: %v", err)
		}
		w.run()
		y, err := rpc.Call[*tensor.Tensor](ctx, a, "py0", "gostub.same", x) // PyTorch 2.6 has sent some by now
		if known := tr.Name != "1.13"; known && (err != nil || !tensor.Equal(x, y)) || !known && !errors.Is(err, cohort.NotSupported) {
			t.Errorf("after a tensor of that type: %v, %v", y, err)
		}
		w.stop()
		if tr.Name == "1.13" {
			return
		}
		w = start(t, tr, set, torchWorker("py0", "pass"), goWorker("go1", reg, rpc.WithElementTypes(tensor.Uint16)))
		y, err = rpc.Call[*tensor.Tensor](testContext(t), w.agents["go1"], "py0", "gostub.same", x)
		if err != nil || !tensor.Equal(x, y) {
			t.Errorf("with WithElementTypes: %v, %v", y, err)
		}
		w.run()
		w.stop()
	})
}
