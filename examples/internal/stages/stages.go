// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package stages trains a network that is cut into stages, each at its own worker: what the pipeline examples have in
// common. A batch goes through the stages in parts, so that all stages work at once; one backward pass over all workers
// finds the gradients, and every worker changes its own parameters.
package stages

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// Pipeline is a network whose stages are at different workers. The first worker feeds it and computes the loss.
type Pipeline struct {
	engine *distautograd.Engine
	agents []*rpc.Agent
	names  []string
	params []*rpc.Ref[*autograd.Variable]
	opt    *remote.Optimizer
}

// Start joins one worker for each stage and gives the parameters of all of them to one optimizer.
func Start(ctx context.Context, st store.Store, rule optim.Rule, nets ...nn.Module) (*Pipeline, error) {
	p := &Pipeline{}
	err := p.start(ctx, st, rule, nets)
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Pipeline) start(ctx context.Context, st store.Store, rule optim.Rule, nets []nn.Module) error {
	for i, net := range nets {
		name, engine := fmt.Sprintf("stage%d", i), distautograd.New()
		agent, err := join(ctx, st, name, engine, net)
		if err != nil {
			return err
		}
		if i == 0 {
			p.engine = engine
		}
		p.agents, p.names = append(p.agents, agent), append(p.names, name)
	}
	err := p.refer(ctx)
	if err == nil {
		p.opt, err = remote.New(ctx, p.agents[0], rule, p.params)
	}
	return err
}

// join starts the worker of one stage.
func join(ctx context.Context, st store.Store, name string, engine *distautograd.Engine, net nn.Module) (*rpc.Agent, error) {
	reg := rpc.NewRegistry()
	err := errors.Join(
		// The stage's own part, and then those of the workers behind it.
		reg.Handle("stage.forward", func(ctx context.Context, behind []string, x *autograd.Variable) (*autograd.Variable, error) {
			y := net.Forward(x)
			if len(behind) == 0 || y.Err() != nil {
				return y, y.Err()
			}
			return rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), behind[0], "stage.forward", behind[1:], y)
		}),
		reg.Handle("stage.parameter", func(i int) *autograd.Variable { return nn.Variables(net)[i] }),
		reg.Handle("stage.parameters", func() int { return len(nn.Variables(net)) }),
		remote.Serve(reg, engine, nil),
	)
	if err != nil {
		return nil, err
	}
	return rpc.Join(ctx, st, name, rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), engine.Join())
}

// refer gets references to all parameters of all stages.
func (p *Pipeline) refer(ctx context.Context) error {
	for _, name := range p.names {
		n, err := rpc.Call[int](ctx, p.agents[0], name, "stage.parameters")
		if err != nil {
			return err
		}
		for i := range n {
			ref, err := rpc.Remote[*autograd.Variable](ctx, p.agents[0], name, "stage.parameter", i)
			if err != nil {
				return err
			}
			p.params = append(p.params, ref)
		}
	}
	return nil
}

// Close releases the parameters and ends the workers.
func (p *Pipeline) Close() {
	if p.opt != nil {
		_ = p.opt.Close()
	}
	for _, ref := range p.params {
		_ = ref.Close()
	}
	for _, agent := range p.agents {
		_ = agent.Close()
	}
}

// Forward sends an input through all stages.
func (p *Pipeline) Forward(ctx context.Context, x *autograd.Variable) (*autograd.Variable, error) {
	return p.forward(ctx, x).Await(ctx)
}

func (p *Pipeline) forward(ctx context.Context, x *autograd.Variable) *cohort.Future[*autograd.Variable] {
	return rpc.Async[*autograd.Variable](ctx, p.agents[0], p.names[0], "stage.forward", p.names[1:], x)
}

// Train takes steps, prints how the loss falls, and returns the loss of every step. batch returns the inputs of the next
// step and the class of every row that comes out of the network.
func (p *Pipeline) Train(ctx context.Context, steps, parts int, out io.Writer,
	batch func() (inputs, classes *tensor.Tensor, err error),
) ([]float64, error) {
	var losses []float64
	for step := range steps {
		inputs, classes, err := batch()
		if err != nil {
			return losses, err
		}
		loss, err := p.step(ctx, inputs, classes, parts)
		if err != nil {
			return losses, err
		}
		losses = append(losses, loss)
		if (step+1)%50 == 0 {
			if _, err := fmt.Fprintf(out, "step %4d/%d  loss %.4f\n", step+1, steps, mean(losses[step-49:])); err != nil {
				return losses, err
			}
		}
	}
	return losses, nil
}

// step sends a batch through the pipeline in parts, and changes all parameters by the gradient of the loss.
func (p *Pipeline) step(ctx context.Context, inputs, classes *tensor.Tensor, parts int) (float64, error) {
	gctx, c, err := p.engine.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	futures := make([]*cohort.Future[*autograd.Variable], parts)
	for i := range futures {
		x, err := part(inputs, i, parts)
		if err != nil {
			return 0, err
		}
		futures[i] = p.forward(gctx, autograd.Constant(x))
	}
	var losses []*autograd.Variable
	total := 0.0
	for i, f := range futures {
		y, err := f.Await(gctx)
		if err != nil {
			return 0, err
		}
		want, err := part(classes, i, parts)
		if err != nil {
			return 0, err
		}
		loss := autograd.CrossEntropy(y, want, autograd.ReduceMean).Scale(1 / float64(parts))
		losses = append(losses, loss)
		total += loss.Item()
	}
	if err := c.Backward(gctx, losses); err != nil {
		return 0, err
	}
	return total, p.opt.Step(gctx, c)
}

// part returns one of some equal parts of a tensor.
func part(t *tensor.Tensor, i, parts int) (*tensor.Tensor, error) {
	n := t.Shape()[0]
	return t.Narrow(0, i*n/parts, (i+1)*n/parts-i*n/parts)
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}
