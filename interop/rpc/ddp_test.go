// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

// hybridTrainer is a trainer of PyTorch: a model with parameters before and behind a layer that another worker has, wrapped by
// DistributedDataParallel, in distributed autograd contexts. want is the mean of what both ranks compute alone.
const hybridTrainer = `
import layers
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo", init_method=%q, rank=0, world_size=2)
f64 = torch.float64
class Hybrid(torch.nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=f64))
        self.last = torch.nn.Parameter(torch.tensor([1.5, 0.25, -0.5], dtype=f64))
        self.middle = middle
    def forward(self, x): return (self.middle(x * self.first) * self.last).sum()
def data(step, rank): return torch.tensor([1.0, -2.0, 0.5], dtype=f64) * (1 + step + 10 * rank)
for server in %s:
    w = layers.initial(server)
    model = Hybrid(lambda y: rpc.rpc_sync(server, layers.forward, args=([], y)))
    wrapped = DDP(model, bucket_cap_mb=1e-5)
    for step in range(3):
        alone = Hybrid(lambda y: layers.layer(y, w))
        sum((alone(data(step, rank)) for rank in range(2))).backward()
        with dist_autograd.context() as cid:
            dist_autograd.backward(cid, [wrapped(data(step, 0))])
            got = dist_autograd.get_gradients(cid)
            for p, q in [(model.first, alone.first), (model.last, alone.last)]:
                assert torch.allclose(got[p], q.grad / 2, atol=1e-12), (server, step, got[p], q.grad / 2)
dist.destroy_process_group()
`

// hybrid is the model Hybrid of PyTorch's trainer.
type hybrid struct {
	first, last *autograd.Variable
	middle      func(x *autograd.Variable) *autograd.Variable
}

func newHybrid(middle func(x *autograd.Variable) *autograd.Variable) *hybrid {
	return &hybrid{
		autograd.Parameter(tensor.Must(tensor.From([]float64{0.5, -1, 2}))),
		autograd.Parameter(tensor.Must(tensor.From([]float64{1.5, 0.25, -0.5}))), middle,
	}
}

func (h *hybrid) Forward(x *autograd.Variable) *autograd.Variable {
	return h.middle(x.Mul(h.first)).Mul(h.last).Sum()
}

func (h *hybrid) Params() []nn.Param {
	return []nn.Param{{Name: "first", Value: h.first}, {Name: "last", Value: h.last}}
}

func hybridData(step, rank int) *autograd.Variable {
	return autograd.Constant(tensor.Must(tensor.From([]float64{1, -2, 0.5}))).Scale(float64(1 + step + 10*rank))
}

// trainHybrid does as rank 1 what PyTorch's trainer does as rank 0.
func (l *layerOf) trainHybrid(ctx context.Context, a *rpc.Agent, url string, servers []string) (err error) {
	w, err := world.Join(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		return err
	}
	for _, server := range servers {
		model := newHybrid(nil)
		wrapped, failed := ddp.New(ctx, g, model, ddp.WithBuckets(10, 10))
		if failed != nil {
			return failed
		}
		for step := range 3 {
			err = errors.Join(err, l.hybridStep(ctx, a, wrapped, model, server, step))
		}
		wrapped.Close()
	}
	return err
}

func (l *layerOf) hybridStep(ctx context.Context, a *rpc.Agent, wrapped *ddp.Model, model *hybrid, server string, step int) error {
	alone := newHybrid(func(y *autograd.Variable) *autograd.Variable { return applyLayer(y, initialWeight(server)) })
	if err := alone.Forward(hybridData(step, 0)).Add(alone.Forward(hybridData(step, 1))).Scale(0.5).Backward(ctx); err != nil {
		return err
	}
	gctx, c, err := l.engine.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	model.middle = func(y *autograd.Variable) *autograd.Variable {
		z, failed := rpc.Call[*autograd.Variable](gctx, a, server, "layers.forward", []string{}, y)
		if failed != nil {
			return autograd.Failed(failed)
		}
		return z
	}
	if err = c.Backward(gctx, []*autograd.Variable{wrapped.Forward(gctx, hybridData(step, 1))}); err != nil {
		return err
	}
	for i, v := range nn.Variables(model) {
		if got, want := c.Gradient(v), nn.Variables(alone)[i].Grad(); got == nil || !tensor.AllClose(got, want, 1e-12, 1e-12, false) {
			err = errors.Join(err, fmt.Errorf("%s, step %d: the context has %v, want %v", server, step, got, want))
		}
	}
	return err
}

// TestDataParallelInContexts: a Go rank and a PyTorch rank train a model in distributed autograd contexts, whose gradients are reduced by
// DistributedDataParallel. A part of the model is at a third worker, of Go or of PyTorch.
func TestDataParallelInContexts(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		servers := []string{"go2", "py3"}
		m1, l1 := goLayer("go1")
		m2, _ := goLayer("go2")
		address := fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t))
		trainer := torchWorker("py0", fmt.Sprintf(hybridTrainer, address, pyList(servers)))
		w := start(t, tr, settings{modules: map[string]string{"layers": layers}, tolerant: true}, trainer, m1, m2,
			torchWorker("py3", "import layers\n"))
		ctx := testContext(t)
		trained := make(chan error, 1)
		go func() { trained <- l1.trainHybrid(ctx, w.agents["go1"], address+"?rank=1&world_size=2", servers) }()
		w.run()
		if err := <-trained; err != nil {
			t.Error(err)
		}
		w.freed(ctx, w.agents["go1"])
		w.stop()
	})
}
