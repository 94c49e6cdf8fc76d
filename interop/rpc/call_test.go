// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

const gostub = `
def scale(x, factor, *, shift=0): raise NotImplementedError
def echo(x): raise NotImplementedError
def fail(kind, text): raise NotImplementedError
def unknown(): raise NotImplementedError
def strict(a, b): raise NotImplementedError
def crash(): raise NotImplementedError
class Own(Exception): pass
def really(kind, text):
    import builtins
    raise (Own if kind == "gostub.Own" else getattr(builtins, kind))(text)
`

// handlers are what the stub module promises.
func handlers() *rpc.Registry {
	type scaleArgs struct {
		X      *tensor.Tensor
		Factor float64
		Shift  float64
	}
	return rpc.NewRegistry().
		MustHandle("gostub.scale", func(_ context.Context, in scaleArgs) (*tensor.Tensor, error) {
			xs, err := tensor.Copy[float32](in.X)
			if err != nil {
				return nil, err
			}
			for i := range xs {
				xs[i] = xs[i]*float32(in.Factor) + float32(in.Shift)
			}
			return tensor.From(xs, in.X.Shape()...)
		}).
		MustHandle("gostub.echo", func(x any) any { return x }).
		MustHandle("gostub.fail", func(kind, text string) error { return rpc.Raise(kind, "%s", text) }).
		MustHandle("gostub.strict", func(a, b int) int { return a - b }, rpc.Params("a", "b")).
		MustHandle("gostub.crash", func() { panic("a bug") })
}

func TestPyTorchCallsGo(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		set.modules = map[string]string{"gostub": gostub}
		w := start(t, tr, set, torchWorker("py0", `
import gostub
teq(rpc.rpc_sync("go1", gostub.scale, args=(torch.arange(3, dtype=torch.float32), 2.0), kwargs={"shift": 1}), torch.tensor([1., 3., 5.]))
big = torch.arange(1 << 20, dtype=torch.int64)
teq(rpc.rpc_sync("go1", gostub.echo, args=(big,)), big)
futures = [rpc.rpc_async("go1", gostub.scale, args=(torch.full((5,), float(i)), 3.0)) for i in range(50)]
for i, f in enumerate(futures):
    teq(f.wait(), torch.full((5,), 3.0 * i))
for value in [None, True, 7, -1, 1 << 40, 1 << 70, 2.5, 1j, "text", "\u00fc\n", b"bytes", bytearray(b"ba"), [1, [2]], (1, (2,)), {"a": 1, 2: [3]}, {1, 2}, frozenset([3]), float("inf")]:
    eq(rpc.rpc_sync("go1", gostub.echo, args=(value,)), value)
for dt in [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex64, torch.complex128]:
    x = torch.ones(3, 2).to(dt)
    y = rpc.rpc_sync("go1", gostub.echo, args=(x,))
    assert y.dtype == dt
    teq(y, x)
a = torch.arange(12.).reshape(3, 4)
b = rpc.rpc_sync("go1", gostub.echo, args=([a.t(), a[1:, ::2], a],))
teq(b[0], a.t()); teq(b[1], a[1:, ::2])
b[2][1, 0] = 100
assert b[1][0, 0] == 100, "views share their storage"
s = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3., 4.], (2, 3))
teq(rpc.rpc_sync("go1", gostub.echo, args=(s,)).to_dense(), s.to_dense())
for kind, want in [("ValueError", ValueError), ("TypeError", TypeError), ("KeyError", Exception), ("RuntimeError", RuntimeError)]:
    try:
        rpc.rpc_sync("go1", gostub.fail, args=(kind, "it is \u00e4 \u20ac test"))
        raise SystemExit("no exception")
    except want as e:
        assert "it is \u00e4 \u20ac test" in str(e) and "On WorkerInfo(id=1, name=go1)" in str(e), str(e)
# What a Go worker raises reads like what a PyTorch worker raises, but for the frames of the stack.
import re
def plain(call, worker, fn, kind):
    try:
        call(worker, fn, kind)
    except Exception as e:
        lines = str(e).replace("\\n", "\n").replace("\\'", "'").split("\n")
        return type(e), [re.sub(r"id=\d, name=\w+", "", line) for line in lines if not line.startswith("  ")]
    raise SystemExit("no exception")
for call in [lambda to, fn, kind: rpc.rpc_sync(to, fn, args=(kind, "it's so")), lambda to, fn, kind: rpc.remote(to, fn, args=(kind, "it's so")).to_here()]:
    for kind in ["ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError", "gostub.Own"]:
        eq(plain(call, "go1", gostub.fail, kind), plain(call, "py0", gostub.really, kind))
# A class that this side does not have or cannot import, that is not an exception or that takes more than a text: the message arrives all
# the same.
import os, sys, tempfile
folder = tempfile.TemporaryDirectory()
sys.path.append(folder.name)
for name, text in [("missing", "import nomodule"), ("broken", "raise OSError('no such library')"), ("leaves", "raise SystemExit(1)")]:
    with open(os.path.join(folder.name, name + ".py"), "w") as f:
        f.write(text)
for kind in ["nomodule.Error", "nomodule.sub.Error", "gostub.Nothing", "gostub.Own.Nothing", "gostub.echo", "decimal.Decimal", "Misspelled", "no module.Error", "UnicodeDecodeError", "missing.Error", "broken.Error", "leaves.Error"]:
    for call in [lambda: rpc.rpc_sync("go1", gostub.fail, args=(kind, "it's lost")), lambda: rpc.remote("go1", gostub.fail, args=(kind, "it's lost")).to_here()]:
        try:
            raise SystemExit("%s: %r instead of an exception" % (kind, call()))
        except Exception as e:
            assert type(e) is RuntimeError and "it's lost" in str(e).replace("\\\\'", "'") and kind in str(e), (kind, type(e), str(e))
for call, want in [(lambda: rpc.rpc_sync("go1", gostub.unknown), "no handler"), (lambda: rpc.rpc_sync("go1", gostub.crash), "a bug")]:
    try:
        call()
        raise SystemExit("no exception")
    except RuntimeError as e:
        assert want in str(e), str(e)
try:
    rpc.rpc_sync("go1", gostub.strict, args=(1,), kwargs={"c": 2})
    raise SystemExit("no exception")
except TypeError as e:
    assert "unexpected keyword" in str(e), str(e)
eq(rpc.rpc_sync("go1", gostub.strict, args=(5,), kwargs={"b": 2}), 3)
`), goWorker("go1", handlers()))
		w.run()
		w.stop()
	})
}

const pymod = `
import torch
def total(x, y=0): return x.sum().item() + y
def twice(x): return x * 2
def fail(x): raise KeyError("no %s" % x)
def views():
    a = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    return [a.t(), a[1:, ::2], a]
def echo(*args, **kwargs): return (args, kwargs)
class MyError(Exception): pass
def mine(): raise MyError("mine")
def local(): return lambda: 1
def buggy(x): return x + "a" if x is not None else x.nothing
`

func TestGoCallsPyTorch(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		set.modules = map[string]string{"pymod": pymod}
		w := start(t, tr, set, torchWorker("py0", "pass"), goWorker("go1", nil))
		a, ctx := w.agents["go1"], testContext(t)
		x := tensor.Must(tensor.From([]float32{1, 2, 3}, 3))
		if got, err := rpc.Call[float64](ctx, a, "py0", "pymod.total", x, rpc.Kw{"y": 4}); err != nil || got != 10 {
			t.Fatalf("total = %v, %v", got, err)
		}
		y, err := rpc.Call[*tensor.Tensor](ctx, a, "py0", "torch.add", x, x)
		if err != nil {
			t.Fatal(err)
		}
		if data, _ := tensor.Data[float32](y); !cmp.Equal(data, []float32{2, 4, 6}) {
			t.Fatalf("torch.add = %v", data)
		}
		y, err = rpc.Call[*tensor.Tensor](ctx, a, "py0", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", x, x)
		if err != nil {
			t.Fatal(err)
		}
		if data, _ := tensor.Data[float32](y); !cmp.Equal(data, []float32{1, 4, 9}) {
			t.Fatalf("mul = %v", data)
		}
		var remote *rpc.RemoteError
		_, err = rpc.Call[any](ctx, a, "py0", "pymod.fail", 5)
		if !errors.As(err, &remote) || remote.Kind != "KeyError" || remote.Message != "'no 5'" || remote.Worker != "py0" ||
			remote.Stack == "" {
			t.Fatalf("fail: %#v", err)
		}
		_, err = rpc.Call[any](ctx, a, "py0", "pymod.mine")
		if !errors.As(err, &remote) || remote.Kind != "pymod.MyError" {
			t.Fatalf("mine: %#v", err)
		}
		if _, err = rpc.Call[any](ctx, a, "py0", "pymod.nothing"); !errors.Is(err, cohort.NotFound) {
			t.Fatalf("nothing: %v", err)
		}
		if _, err = rpc.Call[any](ctx, a, "py0", "pymod.twice", 1, 2, 3); !errors.Is(err, cohort.InvalidArgument) {
			t.Fatalf("twice with three arguments: %v", err)
		}
		for kind, arg := range map[string]any{"TypeError": 1, "AttributeError": nil} { // it was found, and called as it should be
			_, err = rpc.Call[any](ctx, a, "py0", "pymod.buggy", arg)
			if !errors.As(err, &remote) || remote.Kind != kind || remote.Code != cohort.Remote {
				t.Fatalf("buggy(%v): %#v", arg, err)
			}
		}
		futures := make([]*cohort.Future[float64], 50)
		for i := range futures {
			futures[i] = rpc.Async[float64](ctx, a, "py0", "pymod.total", x, i)
		}
		for i, f := range futures {
			if got, failed := f.Await(ctx); failed != nil || got != float64(6+i) {
				t.Fatalf("async %d: %v, %v", i, got, failed)
			}
		}
		got, err := rpc.Call[py.Tuple](ctx, a, "py0", "pymod.echo", nil, true, []any{1, "a"}, map[string]int{"k": 1},
			rpc.Kw{"z": py.Set{int64(3)}})
		if err != nil {
			t.Fatal(err)
		}
		want := py.Tuple{
			py.Tuple{nil, true, []any{int64(1), "a"}, &py.Dict{Pairs: []py.Pair{{Key: "k", Value: int64(1)}}}},
			&py.Dict{Pairs: []py.Pair{{Key: "z", Value: py.Set{int64(3)}}}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		w.run()
		w.stop()
	})
}

// TestErrorsOfTheFramework asks a PyTorch worker for what fails outside any function: it answers with a text that ends in
// a stack, of which Go gets the class, the message and the stack apart.
func TestErrorsOfTheFramework(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := start(t, tr, settings{static: true, tolerant: true, modules: map[string]string{"pymod": pymod}},
			torchWorker("py0", "pass"), goWorker("go1", nil))
		a, ctx := w.agents["go1"], testContext(t)
		for _, c := range []struct {
			fn, kind, message string
			code              cohort.Code
		}{
			{"nomodule.nothing", "ModuleNotFoundError", "No module named 'nomodule'", cohort.NotFound},
			{
				"aten::nothing(Tensor self) -> Tensor", "RuntimeError",
				"Cannot find matching operator for schema aten::nothing(Tensor self) -> Tensor", cohort.NotFound,
			},
			{"pymod.local", "AttributeError", "local object 'local.<locals>.<lambda>'", cohort.Remote},
		} {
			_, err := rpc.Call[any](ctx, a, "py0", c.fn)
			var remote *rpc.RemoteError
			if !errors.As(err, &remote) || remote.Kind != c.kind || !strings.HasSuffix(remote.Message, c.message) ||
				remote.Code != c.code || remote.Stack == "" {
				t.Errorf("%s: %#v", c.fn, err)
			}
		}
		w.run()
		w.stop()
	})
}

// TestDeviceMapOfCPU: a PyTorch worker that maps its CPU to that of a Go worker; its tensors arrive and come back as without a map.
func TestDeviceMapOfCPU(t *testing.T) {
	both(t, func(t *testing.T, tr *torchtest.Torch, set settings) {
		set = stubSettings(set)
		set.options = `, device_maps={"go1": {"cpu": "cpu"}}`
		w := start(t, tr, set, torchWorker("py0", `
import gostub
for call in (lambda f, *args: rpc.rpc_sync("go1", f, args=args), lambda f, *args: rpc.remote("go1", f, args=args).to_here()):
    for z in (call(torch.add, torch.zeros(2), torch.ones(2)), call(gostub.scale, torch.ones(2), 1.0)):
        teq(z, torch.ones(2))
        eq(z.device, torch.device("cpu"))
`), goWorker("go1", mergedHandlers()))
		w.run()
		w.stop()
	})
}
