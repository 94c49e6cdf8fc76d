// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command mixed trains one network in two languages: the first half lives in a PyTorch process, the second half here. A batch goes
// to PyTorch and comes back as features; the loss is computed here; one backward pass goes back through both, and an optimizer
// steps each parameter where it is:
//
//	python3 examples/mixed/worker.py tcp://127.0.0.1:29500 0 2 &
//	go run ./examples/mixed 'tcp://127.0.0.1:29500?rank=1&world_size=2'
//
// The other order works too: then this process hosts the store, and stays until PyTorch's has left it, which is at its very end.
//
// The Python side is an ordinary module, features.py: nothing in it knows about Go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/examples/internal/curve"
	"github.com/cohort-dist/cohort/examples/internal/launch"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

const (
	steps     = 200
	batchSize = 64
	hidden    = 24 // features that PyTorch computes
)

func main() {
	launch.Main(func(ctx context.Context, url string, out io.Writer) error {
		_, err := run(ctx, url, out)
		return err
	})
}

// run trains and returns the losses of all steps.
func run(ctx context.Context, url string, out io.Writer) ([]float64, error) {
	w, err := world.Join(ctx, url, world.WithTimeout(time.Minute))
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	engine, reg := distautograd.New(), rpc.NewRegistry()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // initial weights and points
	head := nn.NewLinear(random, hidden, 1)
	own := nn.Variables(head)
	err = errors.Join(
		remote.Serve(reg, engine, nil), // the parameters of this half are stepped as those of the other one
		reg.Handle("head.parameter", func(i int) *autograd.Variable { return own[i] }),
	)
	if err != nil {
		return nil, err
	}
	agent, err := w.RPC(ctx, "driver", rpc.WithHandlers(reg), engine.Join())
	if err != nil {
		return nil, err
	}
	losses, err := train(ctx, &model{engine, agent, head}, len(own), random, out)
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(out, "\n%s\nloss from %.4f to %.4f: half of the network in PyTorch, half in Go\n", curve.Draw(losses),
		losses[0], losses[len(losses)-1])
	return losses, w.Shutdown(ctx)
}

// model is a network whose first half is at the worker "torch".
type model struct {
	engine *distautograd.Engine
	agent  *rpc.Agent
	head   *nn.Linear
}

// train makes the optimizer of all parameters and runs the steps.
func train(ctx context.Context, m *model, own int, random *rand.Rand, out io.Writer) ([]float64, error) {
	far, err := rpc.Call[int](ctx, m.agent, "torch", "features.parameters")
	if err != nil {
		return nil, err
	}
	var params []*rpc.Ref[*autograd.Variable]
	defer func() {
		for _, p := range params {
			_ = p.Close()
		}
	}()
	for i := range far + own {
		owner, fn, number := "torch", "features.parameter", i
		if i >= far {
			owner, fn, number = m.agent.Name(), "head.parameter", i-far
		}
		p, failed := rpc.Remote[*autograd.Variable](ctx, m.agent, owner, fn, number)
		if failed != nil {
			return nil, failed
		}
		params = append(params, p)
	}
	opt, err := remote.New(ctx, m.agent, optim.Adam{LR: 0.02}, params)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opt.Close() }()
	var losses []float64
	for step := range steps {
		loss, err := m.step(ctx, opt, random)
		if err != nil {
			return nil, err
		}
		losses = append(losses, loss)
		if (step+1)%50 == 0 {
			_, _ = fmt.Fprintf(out, "step %3d/%d  loss %.4f\n", step+1, steps, loss)
		}
	}
	return losses, nil
}

// step is one step: points of a curve, forward through both halves, and back.
func (m *model) step(ctx context.Context, opt *remote.Optimizer, random *rand.Rand) (float64, error) {
	xs, ys := make([]float32, batchSize), make([]float32, batchSize)
	for i := range xs {
		x := 2*random.Float64() - 1
		xs[i], ys[i] = float32(x), float32(math.Sin(3*x))
	}
	x, err1 := tensor.From(xs, batchSize, 1)
	y, err2 := tensor.From(ys, batchSize, 1)
	gctx, c, err3 := m.engine.Open(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	features, err := rpc.Call[*autograd.Variable](gctx, m.agent, "torch", "features.forward", x)
	if err != nil {
		return 0, err
	}
	loss := autograd.MSE(m.head.Forward(features), autograd.Constant(y), autograd.ReduceMean)
	return loss.Item(), errors.Join(c.Backward(gctx, []*autograd.Variable{loss}), opt.Step(gctx, c))
}
