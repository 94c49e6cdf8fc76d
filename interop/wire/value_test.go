// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//nolint:errcheck // a type assertion that fails fails the test
package wire_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// TestValuesEchoedByGo sends every kind of value from PyTorch through a Go handler and back; Python compares.
func TestValuesEchoedByGo(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w, _, p := world(t, tr, "", `
import gostub, collections
def echo(*args): return rpc.rpc_sync("go1", gostub.echo, args=args)
plain = [None, True, False, 0, -1, 2**40, 2**100, 1.5, float("inf"), 2+3j, "text", "", "\u20ac\U0001f600", b"\x00\xff", bytearray(b"x"),
         [1, [2]], (1,), (), {}, {"a": 1, 2: "b", (3,): None}, {1, 2}, frozenset({"x"}), torch.Size([1, 2]), collections.OrderedDict(z=1, a=2)]
back = echo(*plain)
for got, want in zip(back, plain):
    assert got == want, (got, want)
assert [type(x) for x in back[:22]] == [type(x) for x in plain[:22]], back
for dtype in [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
              torch.float64, torch.complex64, torch.complex128, torch.bool]:
    for shape in [(), (0,), (3,), (2, 3), (2, 0, 4), (1, 2, 3, 4)]:
        x = torch.randn(shape).mul(10).to(dtype)
        y, = echo(x)
        assert y.dtype == x.dtype and y.shape == x.shape and torch.equal(y, x), (dtype, shape)
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
views = [base.t(), base[1:3, ::2], base[2], base.flatten()[5:9], base.expand(2, 4, 6), base]
back = echo(views)[0]
for got, want in zip(back, views):
    assert torch.equal(got, want) and got.stride() == want.stride()
assert len({v.storage().data_ptr() for v in back}) == 1
big = torch.zeros(100000)
y, = echo(big[10:20])
assert y.storage().nbytes() == 40 if hasattr(y.storage(), "nbytes") else True
sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3., 4., 5.]), (2, 3))
y, = echo(sparse)
assert y.is_sparse and torch.equal(y.to_dense(), sparse.to_dense())
g = torch.ones(2, requires_grad=True)
assert echo({"deep": [(g, {"x": sparse})]})[0]["deep"][0][0].tolist() == [1, 1]
same = [1]
back = echo([same, same])[0]
try:
    echo(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))
except Exception as e:
    print("refused", "quantized" in str(e))
try:
    echo(torch.ones(2, dtype=torch.complex64).conj())
    print("conjugate sent")
except Exception as e:
    print("conjugate", "resolve_conj" in str(e))
class Opaque:
    pass
print("values fine")
`+leave, map[string]string{"gostub": stub})
		w.handlers["gostub.echo"] = func(u rpcwire.UDF) (any, error) { return py.Tuple(u.Args), nil }
		p.Send(t, "go")
		p.Expect(t, "refused True")
		if line := p.Line(t); line != "conjugate True" && line != "conjugate sent" {
			t.Errorf("conjugate: %q", line)
		}
		p.Expect(t, "values fine")
		p.Expect(t, "left")
		p.MustExit(t, 30*time.Second)
	})
}

// TestBuiltinsAutogradAndProfiler lets PyTorch call builtin operators of a Go worker, plain, inside an autograd context
// and under the legacy profiler.
func TestBuiltinsAutogradAndProfiler(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w, _, p := world(t, tr, "", `
import gostub
import torch.distributed.autograd as dist_autograd
x = torch.tensor([1., 2.])
assert torch.equal(rpc.rpc_sync("go1", torch.add, args=(x, x)), 2 * x)
try:
    rpc.rpc_sync("go1", torch.matmul, args=(x, x))
except RuntimeError as e:
    print("refused", "aten::matmul" in str(e))
with dist_autograd.context() as ctx:
    a = x.clone().requires_grad_()
    assert torch.equal(rpc.rpc_sync("go1", gostub.echo, args=(a,))[0], x)
    assert torch.equal(rpc.rpc_sync("go1", torch.add, args=(a, a)), 2 * x)
print("context left")
from torch.autograd.profiler_legacy import profile as legacy
with legacy():
    assert torch.equal(rpc.rpc_sync("go1", torch.add, args=(x, x)), 2 * x)
    assert torch.equal(rpc.rpc_sync("go1", gostub.echo, args=(x,))[0], x)
print("profiled")
import linecache  # TorchScript wants to see the source
source = """
@torch.jit.script
def scripted(t: torch.Tensor, k: int) -> torch.Tensor:
    return t * k
"""
linecache.cache["scripted.py"] = (len(source), None, source.splitlines(True), "scripted.py")
exec(compile(source, "scripted.py", "exec"), globals())
assert torch.equal(rpc.rpc_sync("go1", scripted, args=(x, 3)), 3 * x)
print("scripted")
`+leave, map[string]string{"gostub": stub})
		w.handlers["gostub.echo"] = func(u rpcwire.UDF) (any, error) { return u.Args, nil }
		w.script = func(s rpcwire.ScriptUDF) (any, error) {
			x, ok := s.Stack[0].(*tensor.Tensor)
			if !ok {
				return nil, fmt.Errorf("%T", s.Stack[0])
			}
			factor := float32(2)
			switch {
			case s.Operator() == "aten::add.Tensor":
			case strings.HasSuffix(s.Name, "scripted"):
				factor = float32(s.Stack[1].(int64))
			default:
				return nil, fmt.Errorf("no kernel for %s", s.Operator())
			}
			data, err := tensor.Data[float32](x)
			if err != nil {
				return nil, err
			}
			out := make([]float32, len(data))
			for i, v := range data {
				out[i] = factor * v
			}
			return tensor.From(out, len(out))
		}
		p.Send(t, "go")
		for _, line := range []string{"refused True", "context left", "profiled", "scripted", "left"} {
			p.Expect(t, line)
		}
		p.MustExit(t, 30*time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		seen := map[rpcwire.Type]bool{}
		for _, k := range w.seen {
			seen[k] = true
		}
		for _, want := range []rpcwire.Type{
			rpcwire.ScriptCall, rpcwire.ForwardAutogradReq, rpcwire.CleanupAutogradReq, rpcwire.RunWithProfilingReq,
		} {
			if !seen[want] {
				t.Errorf("%v did not come", want)
			}
		}
	})
}

// TestValuesEchoedByPyTorch sends Go values through Python and back.
func TestValuesEchoedByPyTorch(t *testing.T) {
	type config struct {
		LearningRate float64
		Layers       []int
		Note         *string
	}
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		_, c, p := world(t, tr, "", leave, map[string]string{"pymod": `
import torch
def echo(*args): return args
def show(x): return repr(x)
`})
		ctx := testContext(t)
		show := func(v any, want string) {
			t.Helper()
			got, err := c.call(ctx, "pymod.show", v)
			if err != nil || got != any(want) {
				t.Errorf("%#v is %v in Python, want %s (%v)", v, got, want, err)
			}
		}
		note := "hi"
		show(config{0.5, []int{1, 2}, &note}, "{'learning_rate': 0.5, 'layers': [1, 2], 'note': 'hi'}")
		show(config{}, "{'learning_rate': 0.0, 'layers': [], 'note': None}")
		show(map[string]int{"b": 2, "a": 1}, "{'a': 1, 'b': 2}")
		show([]float32{1, 2.5}, "[1.0, 2.5]")
		show([]byte{0, 255}, `b'\x00\xff'`)
		show(uint64(1<<63), "9223372036854775808")
		show(py.Tuple{1, "x", nil, 2i}, "(1, 'x', None, 2j)")
		show(py.Set{7}, "{7}")
		show(py.ByteArray("ab"), "bytearray(b'ab')")
		show(py.Func("torch.float32"), "torch.float32")
		show(rpcwire.WorkerInfo{Name: "w", ID: 3}, "WorkerInfo(id=3, name=w)")
		s := &tensor.Sparse{
			Shape: []int{2, 3}, Indices: tensor.Must(tensor.From([]int64{0, 1, 2, 0}, 2, 2)),
			Values: tensor.Must(tensor.From([]float32{3, 4}, 2)),
		}
		base := tensor.Must(tensor.From([]float64{0, 1, 2, 3, 4, 5}, 2, 3))
		view, err := base.Transpose(0, 1)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.call(ctx, "pymod.echo", base, view, s, []any{base})
		if err != nil {
			t.Fatal(err)
		}
		back := got.(py.Tuple)
		a, b := back[0].(*tensor.Tensor), back[1].(*tensor.Tensor)
		if a.Storage() != b.Storage() || !cmp.Equal(b.Shape(), []int{3, 2}) || !cmp.Equal(b.Strides(), []int{1, 3}) {
			t.Errorf("views: %v %v", b.Shape(), b.Strides())
		}
		if x := back[2].(*tensor.Sparse); !cmp.Equal(x.Shape, []int{2, 3}) || x.Values.Numel() != 2 {
			t.Errorf("sparse: %v", x.Shape)
		}
		p.Send(t, "go")
		p.Expect(t, "left")
		p.MustExit(t, 30*time.Second)
	})
}

// TestListenerSurvivesOurCancelledDials dials a PyTorch listener with contexts that end at once; it must still serve.
func TestListenerSurvivesOurCancelledDials(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w, c, p := world(t, tr, "", leave, nil)
		addr := c.pipe.RemoteAddr().String()
		ended := testContext(t)
		for range 10 {
			ep, err := tensorpipe.New("impatient")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := contextThatEnded()
			if s, err := ep.Dial(ctx, addr); err == nil {
				_ = s.Close()
			}
			cancel()
			time.Sleep(20 * time.Millisecond) // long enough for the hello; Close cuts what is left
			_ = ep.Close()
		}
		s, err := w.ep.Dial(ended, addr)
		if err != nil {
			t.Fatalf("the listener is gone: %v", err)
		}
		_ = s.Close()
		if _, err := c.call(ended, "builtins.len", "abc"); err != nil {
			t.Fatal(err)
		}
		p.Send(t, "go")
		p.Expect(t, "left")
		p.MustExit(t, 30*time.Second)
	})
}

// TestKilledPyTorchIsNoticed kills the PyTorch worker during a call: the call must end at once, not by its time limit.
func TestKilledPyTorchIsNoticed(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		_, c, p := world(t, tr, "", leave, map[string]string{"pymod": "import time\ndef sleep(): time.sleep(60)\n"})
		done := make(chan error, 1)
		go func() {
			_, err := c.call(testContext(t), "pymod.sleep")
			done <- err
		}()
		time.Sleep(100 * time.Millisecond)
		p.Kill()
		select {
		case err := <-done:
			if !errors.Is(err, cohort.PeerLost) {
				t.Fatalf("the call ended with %v", err)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("the call still waits")
		}
	})
}
