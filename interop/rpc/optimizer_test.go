// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

const optimizers = `
import layers
import torch.optim as optim
from torch.distributed.optim import DistributedOptimizer
cases = [(optim.SGD, dict(lr=0.05)), (optim.SGD, dict(lr=0.05, momentum=0.9, nesterov=True)), (optim.Adam, dict(lr=0.01, betas=(0.8, 0.99))),
    (optim.AdamW, dict(lr=0.01)), (optim.Adagrad, dict(lr=0.01)), (optim.RMSprop, dict(lr=0.01, momentum=0.5, centered=True)),
    (optim.Adam, dict(lr=0.01, amsgrad=True)), (optim.AdamW, dict(lr=0.05, amsgrad=True)), (optim.Adadelta, dict(rho=0.95)), (optim.Adamax, dict(lr=0.05)),
    (optim.Rprop, dict(lr=0.05)), (optim.Rprop, dict(lr=0.05, etas=(0.25, 1.5), step_sizes=(0.01, 0.06)))]
for scripted in [True, False]:
    if not scripted: torch.jit._state.disable()
    for cls, kw in cases:
        x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        far = rpc.remote("go1", layers.fresh, args=("go1",))
        near = rpc.RRef(layers.fresh("py0"))
        opt = DistributedOptimizer(cls, [far, near], **kw)
        same = [layers.fresh("go1"), layers.fresh("py0")]
        alone = cls(same, **kw)
        for i in range(3):
            with dist_autograd.context() as cid:
                y = rpc.rpc_sync("go1", layers.apply, args=(far, x))
                dist_autograd.backward(cid, [layers.layer(y, near.local_value()).sum()])
                opt.step(cid)
            alone.zero_grad()
            layers.layer(layers.layer(x, same[0]), same[1]).sum().backward()
            alone.step()
        for got, want in zip([far.to_here(), near.local_value()], same):
            assert torch.allclose(got, want, atol=1e-10), (cls, got, want)
        del far, near, opt
torch.jit._state.enable()
try:
    far = rpc.remote("go1", layers.fresh, args=("go1",))
    DistributedOptimizer(optim.ASGD, [far], lr=0.1)
    raise SystemExit("no exception")
except Exception as e:
    assert "has no optimizer" in str(e), str(e)
try:
    DistributedOptimizer(optim.SGD, [far], lr=-1.0)
    raise SystemExit("no exception")
except Exception as e:
    assert "learning rate" in str(e), str(e)
del far
`

// TestDistributedOptimizer steps parameters of Go by PyTorch's DistributedOptimizer, and parameters of PyTorch by ours.
func TestDistributedOptimizer(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m1, l1 := goLayer("go1")
		if err := serveSteps(m1, l1, nil); err != nil {
			t.Fatal(err)
		}
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, shared: torchtest.Optimizers, tolerant: true},
			torchWorker("py0", optimizers), m1)
		w.run()
		ctx, a := testContext(t), w.agents["go1"]
		for _, rule := range []optim.Rule{
			optim.SGD{LR: 0.05, Momentum: 0.9},
			optim.Adam{LR: 0.01},
			optim.AdamW{LR: 0.01, WeightDecay: 0.1},
			optim.Adagrad{LR: 0.1},
			optim.RMSprop{LR: 0.01},
			optim.Adam{LR: 0.01, AMSGrad: true},
			optim.AdamW{LR: 0.01, WeightDecay: 0.1, AMSGrad: true},
			optim.Adadelta{LR: 1, Rho: 0.95},
			optim.Adamax{LR: 0.05},
			optim.Rprop{LR: 0.05, StepMax: 0.06},
		} {
			far, err := rpc.Remote[*autograd.Variable](ctx, a, "py0", "layers.fresh", "py0")
			if err != nil {
				t.Fatal(err)
			}
			opt, err := remote.New(ctx, a, rule, []*rpc.Ref[*autograd.Variable]{far})
			if err != nil {
				t.Fatal(err)
			}
			same := initialWeight("py0")
			alone, err := optim.New(rule, []*autograd.Variable{same})
			if err != nil {
				t.Fatal(err)
			}
			x := autograd.Constant(tensor.Must(tensor.From([]float64{1, -2, 0.5}, 3)))
			for range 3 {
				gctx, c, failed := l1.engine.Open(ctx)
				if failed != nil {
					t.Fatal(failed)
				}
				y, failed := rpc.Call[*autograd.Variable](gctx, a, "py0", "layers.apply", far, x)
				if failed != nil {
					t.Fatal(failed)
				}
				if err = errors.Join(c.Backward(gctx, []*autograd.Variable{y.Sum()}), opt.Step(gctx, c), c.Close()); err != nil {
					t.Fatalf("%T: %v", rule, err)
				}
				alone.ZeroGrad()
				if err = errors.Join(applyLayer(x, same).Sum().Backward(ctx), alone.Step()); err != nil {
					t.Fatal(err)
				}
			}
			v, err := far.Fetch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := tensor.Data[float64](v.Data())
			want, _ := tensor.Data[float64](same.Data())
			for i := range want {
				if d := got[i] - want[i]; d > 1e-10 || d < -1e-10 {
					t.Errorf("%T: the parameter is %v, want %v", rule, got, want)
					break
				}
			}
			_, _ = opt.Close(), far.Close()
		}
		w.freed(ctx, a)
		w.stop()
	})
}

// sparseAdam trains tables of two workers, whose gradients are sparse, and compares them with tables here.
const sparseAdam = `
import sparselayers as s
from torch.distributed.optim import DistributedOptimizer
for kw in [dict(lr=0.1), dict(lr=0.05, betas=(0.8, 0.95), eps=1e-6)]:
    far = rpc.remote("go1", s.fresh_table, args=("go1",))
    near = rpc.RRef(s.table_of("py0"))
    opt = DistributedOptimizer(torch.optim.SparseAdam, [far, near], **kw)
    same = [s.table_of("go1"), s.table_of("py0")]
    alone = torch.optim.SparseAdam(same, **kw)
    for ids in [[1, 4], [4, 2, 4], [0]]:
        ids = torch.tensor(ids)
        with dist_autograd.context() as cid:
            rows = rpc.rpc_sync("go1", s.rows_of, args=(far, ids)) * torch.nn.functional.embedding(ids, near.local_value(), sparse=True)
            dist_autograd.backward(cid, [(rows * rows).sum()])
            opt.step(cid)
        alone.zero_grad()
        rows = torch.nn.functional.embedding(ids, same[0], sparse=True) * torch.nn.functional.embedding(ids, same[1], sparse=True)
        (rows * rows).sum().backward()
        alone.step()
    for got, want in zip([far.to_here(), near.local_value()], same):
        assert torch.allclose(got, want, atol=1e-10), (kw, got, want)
    del far, near, opt
`

// sparseTables are the functions of both sides for it.
const sparseTables = sparseLayers + `
def fresh_table(name): return table_of(name)
def rows_of(w, ids): return torch.nn.functional.embedding(ids, w.local_value(), sparse=True)
`

// TestSparseAdam steps tables with sparse gradients at their owners: Go's by PyTorch's DistributedOptimizer, PyTorch's by ours.
func TestSparseAdam(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		m1, l1 := goSparse("go1")
		m1.reg.
			MustHandle("sparselayers.fresh_table", rowTable).
			MustHandle("sparselayers.rows_of", func(ctx context.Context, w *rpc.Ref[*autograd.Variable],
				ids *autograd.Variable,
			) (*autograd.Variable, error) {
				defer func() { _ = w.Close() }()
				v, err := w.LocalValue(ctx)
				if err != nil {
					return nil, err
				}
				return autograd.SparseEmbedding(v, ids, -1), nil
			})
		if err := remote.Serve(m1.reg, l1.engine, nil); err != nil {
			t.Fatal(err)
		}
		w := start(t, tr, settings{
			modules: map[string]string{"layers": layers, "sparselayers": sparseTables},
			shared:  torchtest.Optimizers, tolerant: true,
		}, torchWorker("py0", sparseAdam), m1)
		w.run()
		ctx, a := testContext(t), w.agents["go1"]
		rule := optim.SparseAdam{LR: 0.05, Beta1: 0.8, Beta2: 0.95, Eps: 1e-6}
		far, err := rpc.Remote[*autograd.Variable](ctx, a, "py0", "sparselayers.fresh_table", "py0")
		if err != nil {
			t.Fatal(err)
		}
		opt, err := remote.New(ctx, a, rule, []*rpc.Ref[*autograd.Variable]{far})
		if err != nil {
			t.Fatal(err)
		}
		same := rowTable("py0")
		alone, err := optim.New(rule, []*autograd.Variable{same})
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range [][]int64{{1, 4}, {4, 2, 4}, {0}} {
			ids := tensor.Must(tensor.From(list))
			gctx, c, failed := l1.engine.Open(ctx)
			if failed != nil {
				t.Fatal(failed)
			}
			rows, failed := rpc.Call[*autograd.Variable](gctx, a, "py0", "sparselayers.rows_of", far, ids)
			if failed != nil {
				t.Fatal(failed)
			}
			if err = errors.Join(c.Backward(gctx, []*autograd.Variable{rows.Mul(rows).Sum()}), opt.Step(gctx, c), c.Close()); err != nil {
				t.Fatal(err)
			}
			alone.ZeroGrad()
			rows = autograd.SparseEmbedding(same, autograd.Constant(ids), -1)
			if err = errors.Join(rows.Mul(rows).Sum().Backward(ctx), alone.Step()); err != nil {
				t.Fatal(err)
			}
		}
		v, err := far.Fetch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !tensor.AllClose(v.Data(), same.Data(), 1e-10, 1e-10, false) {
			t.Errorf("the table is %v, want %v", v.Data(), same.Data())
		}
		_, _ = opt.Close(), far.Close()
		w.freed(ctx, a)
		w.stop()
	})
}
