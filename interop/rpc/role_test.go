// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

func stubSettings(set settings) settings {
	set.modules = map[string]string{"gostub": gostub, "pymod": pymod, "refstub": refstub, "pyrefs": pyrefs}
	return set
}

// callAll lets every Go worker call every worker.
func callAll(t *testing.T, w *running) {
	t.Helper()
	ctx := testContext(t)
	for _, a := range w.agents {
		for _, to := range a.Workers() {
			fn := "gostub.echo"
			if w.procs[to.Name] != nil {
				fn = "pyrefs.slow"
			}
			if n, err := rpc.Call[int](ctx, a, to.Name, fn, 3); err != nil || n != 3 {
				t.Fatalf("%s to %s: %v, %v", a.Name(), to.Name, n, err)
			}
		}
	}
}

// TestRoles starts and ends worlds with Go as leader and as follower of PyTorch's all-gather (the name that sorts first
// leads), as rank 0 that hosts the store, as the majority, and with two Go workers among themselves.
func TestRoles(t *testing.T) {
	hello := func(to ...string) string {
		var script strings.Builder
		script.WriteString("import gostub\n")
		for _, name := range to {
			fmt.Fprintf(&script, "eq(rpc.rpc_sync(%q, gostub.echo, args=(5,)), 5)\n", name)
		}
		return script.String()
	}
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		for name, members := range map[string][]member{
			"leader":         {torchWorker("py0", hello("a1")), goWorker("a1", handlers())},
			"follower":       {torchWorker("py0", hello("z1")), goWorker("z1", handlers())},
			"rank0":          {goWorker("go0", handlers()), torchWorker("py1", hello("go0"))},
			"rank0-follower": {goWorker("z0", handlers()), torchWorker("py1", hello("z0")), torchWorker("py2", hello("z0"))},
			"two-go":         {torchWorker("py0", hello("a1", "z2")), goWorker("a1", handlers()), goWorker("z2", handlers())},
			"go-around":      {goWorker("go0", handlers()), torchWorker("py1", hello("go0", "go2")), goWorker("go2", handlers())},
		} {
			t.Run(name, func(t *testing.T) {
				w := start(t, tr, stubSettings(set), members...)
				callAll(t, w)
				w.run()
				w.stop()
			})
		}
	})
}

// TestChannels moves tensors over each of TensorPipe's channels, with options that restrict PyTorch as well.
func TestChannels(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, c := range []struct {
			name, options string
			opts          []rpc.Option
		}{
			{"mpt", "", []rpc.Option{rpc.WithChannels("mpt_uv")}},
			{"uv-basic", `, _transports=["uv"], _channels=["basic"]`, nil},
			{"uv-mpt", `, _transports=["uv"], _channels=["mpt_uv"]`, []rpc.Option{rpc.WithChannels("mpt_uv", "basic")}},
		} {
			t.Run(c.name, func(t *testing.T) {
				set := stubSettings(settings{options: c.options})
				w := start(t, tr, set, torchWorker("py0", `
import gostub
for n in [0, 1, 1000, 1 << 20]:
    x = torch.arange(n, dtype=torch.float32)
    teq(rpc.rpc_sync("go1", gostub.echo, args=(x,)), x)
`), goWorker("go1", handlers(), c.opts...))
				ctx := testContext(t)
				big := tensor.Must(tensor.New(tensor.Float32, 1<<20))
				if y, err := rpc.Call[*tensor.Tensor](ctx, w.agents["go1"], "py0", "pymod.twice", big); err != nil || y.Numel() != 1<<20 {
					t.Fatalf("twice: %v", err)
				}
				w.run()
				w.stop()
			})
		}
	})
}

// TestAutogradContext serves calls inside a PyTorch autograd context and profiler, and refuses a backward pass.
func TestAutogradContext(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		w := start(t, tr, stubSettings(set), torchWorker("py0", `
import gostub, refstub
x = torch.ones(3, requires_grad=True)
with dist_autograd.context() as ctx:
    y = rpc.rpc_sync("go1", gostub.scale, args=(x, 2.0))
    teq(y.detach(), torch.full((3,), 2.))
    eq(rpc.rpc_sync("go1", gostub.echo, args=(5,)), 5)
    r = rpc.remote("go1", refstub.tensor, args=(4,))
    teq(r.to_here().detach(), torch.ones(4))
    z = rpc.rpc_sync("go1", torch.add, args=(x, x))
    teq(z.detach(), torch.full((3,), 2.))
    try:
        rpc.rpc_sync("go1", gostub.fail, args=("ValueError", "inside"))
        raise SystemExit("no exception")
    except ValueError as e:
        assert "inside" in str(e)
with dist_autograd.context() as ctx:
    # no differentiable value went to Go here: its calls are wrapped, and the pass does not wait for it
    eq(rpc.rpc_sync("go1", gostub.echo, args=(5,)), 5)
    dist_autograd.backward(ctx, [(x * 3).sum()])
    teq(dist_autograd.get_gradients(ctx)[x], torch.full((3,), 3.))
del r
import torch.autograd.profiler_legacy as legacy
def remote(prof, *functions): # what the Go worker has reported, once for each call
    names = [e.name for e in prof.function_events if e.is_remote]
    for f in functions:
        eq(sum(n.startswith(f"rpc_sync#{f}(py0 -> go1)#remote_op: ") for n in names), 1)
with legacy.profile() as prof:
    eq(rpc.rpc_sync("go1", gostub.echo, args=(6,)), 6)
    teq(rpc.rpc_sync("go1", torch.add, args=(torch.ones(2), 1)), torch.full((2,), 2.))
    with dist_autograd.context() as ctx:
        teq(rpc.rpc_sync("go1", gostub.scale, args=(x, 2.0)).detach(), torch.full((3,), 2.))
remote(prof, "echo", "aten::add", "scale")
with dist_autograd.context() as ctx: # the wrappers the other way round
    with legacy.profile() as prof:
        teq(rpc.rpc_sync("go1", gostub.scale, args=(x, 2.0)).detach(), torch.full((3,), 2.))
        teq(rpc.rpc_sync("go1", torch.add, args=(x, x)).detach(), torch.full((3,), 2.))
remote(prof, "scale", "aten::add")
`), goWorker("go1", mergedHandlers()))
		w.run()
		w.stop()
	})
}

// mergedHandlers serves both stub modules.
func mergedHandlers() *rpc.Registry {
	type scaleArgs struct {
		X      *tensor.Tensor
		Factor float64
	}
	return refHandlers().
		MustHandle("gostub.echo", func(x any) any { return x }).
		MustHandle("gostub.fail", func(kind, text string) error { return rpc.Raise(kind, "%s", text) }).
		MustHandle("gostub.scale", func(in scaleArgs) (*tensor.Tensor, error) {
			xs, err := tensor.Copy[float32](in.X)
			if err != nil {
				return nil, err
			}
			for i := range xs {
				xs[i] *= float32(in.Factor)
			}
			return tensor.From(xs, in.X.Shape()...)
		})
}

// TestBackwardIsRefused sends a backward pass through a reference of a Go worker.
func TestBackwardIsRefused(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		set := stubSettings(settings{tolerant: true})
		w := start(t, tr, set, torchWorker("py0", `
import refstub
with dist_autograd.context() as ctx:
    r = rpc.remote("go1", refstub.tensor, args=(4,))
    try:
        r.backward(ctx)
        raise SystemExit("no exception")
    except RuntimeError as e:
        assert "takes no part in distributed autograd" in str(e), str(e)
`), goWorker("go1", refHandlers()))
		w.run()
		w.stop()
	})
}

// TestTorchScript calls TorchScript functions in both directions, by qualified name.
func TestTorchScript(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		host, inside := tr.TempDir(t)
		writeFile(t, host+"/scripted.py", `
import torch
from typing import Dict, List
@torch.jit.script
def double(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k
@torch.jit.script
def names(d: Dict[str, int]) -> List[str]:
    out: List[str] = []
    for k in d.keys():
        out.append(k)
    return out
@torch.jit.script
def total(xs: List[int], fs: List[float], ss: List[str], d: Dict[str, float], n: Dict[int, List[str]], e: List[List[str]]) -> float:
    return len(xs) + fs[0] + len(ss) + d["a"] + len(n[3]) + len(e)
@torch.jit.script
def table(n: int) -> Dict[str, List[float]]:
    return {"n": [float(n)]}
`)
		reg := rpc.NewRegistry().MustHandle("scripted.table", func(n int) map[string][]float64 {
			return map[string][]float64{"n": make([]float64, n), "empty": {}}
		}).MustHandle("scripted.double", func(x *tensor.Tensor, k int64) (*tensor.Tensor, error) {
			xs, err := tensor.Copy[float32](x)
			if err != nil {
				return nil, err
			}
			for i := range xs {
				xs[i] *= float32(k)
			}
			return tensor.From(xs, x.Shape()...)
		})
		load := fmt.Sprintf("sys.path.insert(0, %q)\nimport scripted\n", inside)
		w := start(t, tr, settings{}, torchWorker("py0", load+`
print("loaded", flush=True)
teq(rpc.rpc_sync("go1", scripted.double, args=(torch.ones(2), 3)), torch.full((2,), 3.))
eq(rpc.rpc_sync("go1", scripted.table, args=(2,)), {"empty": [], "n": [0.0, 0.0]})
r = rpc.remote("go1", scripted.double, args=(torch.ones(2), 4))
teq(r.to_here(), torch.full((2,), 4.))
del r
`), goWorker("go1", reg))
		a, ctx := w.agents["go1"], testContext(t)
		w.run()
		x := tensor.Must(tensor.From([]float32{1, 2}, 2))
		y, err := rpc.Call[*tensor.Tensor](ctx, a, "py0", "__torch__.scripted.double", x, 5)
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := y.At(1); v != any(float32(10)) {
			t.Fatalf("double: %v", y)
		}
		ns, err := rpc.Call[[]string](ctx, a, "py0", "__torch__.scripted.names",
			py.Typed{Type: "Dict[str, int]", Value: &py.Dict{Pairs: []py.Pair{{Key: "a", Value: 1}}}})
		if err != nil || len(ns) != 1 || ns[0] != "a" {
			t.Fatalf("names: %v, %v", ns, err)
		}
		if n, failed := rpc.Call[float64](ctx, a, "py0", "__torch__.scripted.total", []int{1, 2}, []float32{0.5}, []string{},
			map[string]float64{"a": 1},
			map[int][]string{3: {"x"}}, [][]string{{}, {"y"}}); failed != nil || n != 6.5 {
			t.Fatalf("total: %v, %v", n, failed)
		}
		if d, failed := rpc.Call[map[string][]float64](ctx, a, "py0", "__torch__.scripted.table", 3); failed != nil ||
			len(d["n"]) != 1 || d["n"][0] != 3 {
			t.Fatalf("table: %v, %v", d, failed)
		}
		ref, err := rpc.Remote[*tensor.Tensor](ctx, a, "py0", "__torch__.scripted.double", x, 6)
		if err != nil {
			t.Fatal(err)
		}
		if y, err := ref.Fetch(ctx); err != nil || y.Numel() != 2 {
			t.Fatalf("fetch: %v, %v", y, err)
		}
		_ = ref.Close()
		if _, err := rpc.Call[any](ctx, a, "py0", "__torch__.scripted.missing", x); !errors.Is(err, cohort.NotFound) ||
			!strings.Contains(err.Error(), "missing") {
			t.Fatalf("missing: %v", err)
		}
		if _, err := rpc.Call[any](ctx, a, "py0", "__torch__.scripted.double", x); !errors.Is(err, cohort.InvalidArgument) {
			t.Fatalf("an argument too few: %v", err)
		}
		w.stop()
	})
}

// TestSecondWorld starts a second static world in the same processes, after the first was shut down: PyTorch counts its
// worlds, all-gathers and barriers per process. Go is given the number of the world, or finds out.
func TestSecondWorld(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		t.Run("told", func(t *testing.T) { testSecondWorld(t, tr, true) })
		t.Run("found", func(t *testing.T) { testSecondWorld(t, tr, false) })
	})
}

func testSecondWorld(t *testing.T, tr *torchtest.Torch, told bool) {
	t.Helper()
	set := stubSettings(settings{static: true})
	ctx := testContext(t)
	port := testkit.FreePort(t)
	url := "tcp://127.0.0.1:" + strconv.Itoa(port)
	p := tr.Start(t, torchtest.Script{Modules: set.modules, Source: fmt.Sprintf(`
import torch, gostub
import torch.distributed.rpc as rpc
for i in range(2):
    options = rpc.TensorPipeRpcBackendOptions(init_method=%q, rpc_timeout=30)
    rpc.init_rpc("py0", rank=0, world_size=2, rpc_backend_options=options)
    assert rpc.rpc_sync("go1", gostub.echo, args=(i,)) == i
    rpc.shutdown()
    print("round", i, flush=True)
    input()
`, url)})
	for round := range 2 {
		st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = st.JoinWorker(ctx); err != nil {
			t.Fatal(err)
		}
		opts := []rpc.Option{rpc.WithRank(1), rpc.WithWorldSize(2), rpc.WithHandlers(handlers()), rpc.WithAddr("127.0.0.1:0")}
		if told {
			opts = append(opts, rpc.WithRound(round))
		}
		a, err := rpc.Join(ctx, st, "go1", append(opts, operators.Serve())...)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		_ = st.Close()
		p.Expect(t, fmt.Sprintf("round %d", round))
		p.Send(t, "next")
	}
	p.MustExit(t, 30*time.Second)
}
