// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

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
