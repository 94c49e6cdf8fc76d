// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//nolint:errcheck // a type assertion that fails fails the test
package wire_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// world starts a PyTorch worker "py0" that hosts the store of a dynamic RPC world, runs a script in it, and lets a Go
// worker "go1" join.
func world(t *testing.T, tr *torchtest.Torch, rpcOptions, script string, modules map[string]string,
	opts ...tensorpipe.Option,
) (*worker, *client, *torchtest.Proc) {
	t.Helper()
	port := testkit.FreePort(t)
	p := tr.Start(t, torchtest.Script{
		Modules: modules,
		Source: `
import sys, torch
import torch.distributed.rpc as rpc
options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://127.0.0.1:` + strconv.Itoa(port) + `", rpc_timeout=30` + rpcOptions + `)
rpc.init_rpc("py0", rank=0, rpc_backend_options=options)
print("ready")
input()
` + script,
	})
	p.Expect(t, "ready")
	ctx := testContext(t)
	st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	w := newWorker(t, "go1", opts...)
	prefixed := store.Prefix("rpc_prefix_0", st)
	w.join(ctx, prefixed, 1)
	return w, w.member(ctx, prefixed, "py0"), p
}

const stub = `
def scale(x, factor, *, shift=0): raise NotImplementedError
def echo(*args, **kwargs): raise NotImplementedError
def fail(x): raise NotImplementedError
`

const leave = `
rpc.shutdown(graceful=False)
print("left")
`

// channels are the ways storages travel: the default of both sides, and mpt_uv, which PyTorch prefers when offered.
var channels = map[string][]tensorpipe.Option{
	"default": nil,
	"mpt_uv":  {tensorpipe.WithChannels(tensorpipe.ChannelMPT)},
	"basic":   {tensorpipe.WithChannels(tensorpipe.ChannelBasic)},
}

func TestPyTorchCallsGo(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for name, opts := range channels {
			t.Run(name, func(t *testing.T) {
				w, _, p := world(t, tr, "", `
import gostub
y = rpc.rpc_sync("go1", gostub.scale, args=(torch.arange(3, dtype=torch.float32), 2.0), kwargs={"shift": 1})
assert torch.equal(y, torch.tensor([1., 3., 5.])), y
big = torch.arange(1 << 20, dtype=torch.int64)
assert torch.equal(rpc.rpc_sync("go1", gostub.echo, args=(big,))[0], big)
futures = [rpc.rpc_async("go1", gostub.scale, args=(torch.full((5,), float(i)), 3.0)) for i in range(50)]
for i, f in enumerate(futures):
    assert torch.equal(f.wait(), torch.full((5,), 3.0 * i))
try:
    rpc.rpc_sync("go1", gostub.fail, args=(7,))
except ValueError as e:
    print("raised", "bad value 7" in str(e))
try:
    rpc.rpc_sync("go1", gostub.nothing if hasattr(gostub, "nothing") else print)
except Exception as e:
    print("refused", "no such function" in str(e))
`+leave, map[string]string{"gostub": stub}, opts...)
				w.handlers["gostub.scale"] = func(u rpcwire.UDF) (any, error) {
					x, factor := u.Args[0].(*tensor.Tensor), u.Args[1].(float64)
					shift, _ := u.Kwargs.Get("shift")
					add := 0.0
					if n, ok := shift.(int64); ok {
						add = float64(n)
					}
					in, err := tensor.Data[float32](x)
					if err != nil {
						return nil, err
					}
					out := make([]float32, len(in))
					for i, v := range in {
						out[i] = v*float32(factor) + float32(add)
					}
					return tensor.From(out, len(out))
				}
				w.handlers["gostub.echo"] = func(u rpcwire.UDF) (any, error) { return u.Args, nil }
				w.handlers["gostub.fail"] = func(u rpcwire.UDF) (any, error) { return nil, fmt.Errorf("bad value %v", u.Args[0]) }
				p.Send(t, "go")
				p.Expect(t, "raised True")
				p.Expect(t, "refused True")
				p.Expect(t, "left")
				p.MustExit(t, 30*time.Second)
				if s := p.Stderr(); strings.Contains(s, "Error") || strings.Contains(s, "terminate") {
					t.Errorf("PyTorch complains: %s", s)
				}
			})
		}
	})
}

func TestGoCallsPyTorch(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for name, opts := range channels {
			t.Run(name, func(t *testing.T) {
				_, c, p := world(t, tr, "", leave, map[string]string{"pymod": `
import torch
def total(x, y=0): return x.sum().item() + y
def twice(x): return x * 2
def where(): return torch.__version__
def fail(x): raise KeyError("no %s" % x)
def views():
    a = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    return [a.t(), a[1:, ::2], a]
`}, opts...)
				ctx := testContext(t)
				x := tensor.Must(tensor.From([]float32{1, 2, 3}, 3))
				got, err := c.callKw(ctx, rpcwire.UDF{
					Func: py.Func("pymod.total"), Args: []any{x},
					Kwargs: &py.Dict{Pairs: []py.Pair{{Key: "y", Value: 4}}},
				})
				if err != nil || got != any(10.0) {
					t.Fatalf("total = %v, %v", got, err)
				}
				big := tensor.Must(tensor.New(tensor.Float32, 1<<20))
				if got, err = c.call(ctx, "pymod.twice", big); err != nil || got.(*tensor.Tensor).Numel() != 1<<20 {
					t.Fatalf("twice = %v, %v", got, err)
				}
				// A builtin operator as a Python function needs no schema.
				if got, err = c.call(ctx, "torch.add", x, x); err != nil {
					t.Fatal(err)
				}
				if data, _ := tensor.Data[float32](got.(*tensor.Tensor)); !cmp.Equal(data, []float32{2, 4, 6}) {
					t.Fatalf("torch.add = %v", data)
				}
				if got, err = c.call(ctx, "pymod.views"); err != nil {
					t.Fatal(err)
				}
				views := got.([]any)
				a, b := views[0].(*tensor.Tensor), views[1].(*tensor.Tensor)
				if a.Storage() != b.Storage() || !cmp.Equal(a.Shape(), []int{4, 3}) || !cmp.Equal(a.Strides(), []int{1, 4}) ||
					!cmp.Equal(b.Shape(), []int{2, 2}) || b.Offset() != 4 {
					t.Fatalf("views: %v %v, %v %v", a.Shape(), a.Strides(), b.Shape(), b.Offset())
				}
				got, err = c.call(ctx, "pymod.fail", 5)
				if e, ok := got.(*rpcwire.RemoteException); err != nil || !ok || e.Class != py.Func("builtins.KeyError") {
					t.Fatalf("fail = %v, %v", got, err)
				}
				// The schema of a builtin as PyTorch prints it; a wrong one is an EXCEPTION, not the end of the pipe.
				enc := &rpcwire.Encoder{}
				payload, err := enc.ScriptCall(rpcwire.ScriptUDF{
					Schema: "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", Name: "torch.ops.aten.mul", Stack: []any{x, x},
				})
				if err != nil {
					t.Fatal(err)
				}
				m, err := c.exchange(ctx, &rpcwire.Message{Type: rpcwire.ScriptCall, Payload: payload, Tensors: enc.Tensors})
				if err != nil || m.Type != rpcwire.ScriptRet {
					t.Fatalf("mul: %v, %v", m, err)
				}
				got, err = (&rpcwire.Decoder{Tensors: m.Tensors}).ScriptRet(m.Payload)
				if err != nil {
					t.Fatal(err)
				}
				if data, _ := tensor.Data[float32](got.(*tensor.Tensor)); !cmp.Equal(data, []float32{1, 4, 9}) {
					t.Fatalf("mul = %v", data)
				}
				payload, _ = enc.ScriptCall(rpcwire.ScriptUDF{
					Schema: "aten::mul.Nonsense(Tensor self) -> Tensor",
					Name:   "torch.ops.aten.mul", Stack: []any{x},
				})
				m, err = c.exchange(ctx, &rpcwire.Message{Type: rpcwire.ScriptCall, Payload: payload, Tensors: enc.Tensors})
				if err != nil || m.Type != rpcwire.Exception {
					t.Fatalf("nonsense: %v, %v", m, err)
				}
				p.Send(t, "go")
				p.Expect(t, "left")
				p.MustExit(t, 30*time.Second)
			})
		}
	})
}
