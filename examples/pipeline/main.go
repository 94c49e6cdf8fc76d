// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command pipeline trains a network that is cut into three stages, each at a worker of its own. A batch goes through them in four
// parts, so that all stages work at once; one backward pass over all workers finds the gradients, and every worker changes its
// own parameters:
//
//	go run ./examples/pipeline
//
// The network learns which of two spirals a point lies on. It prints the loss, a curve, and how many points it gets right. The
// three workers are in this process, over TCP; nothing in the code would differ if they were on three machines.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"

	"github.com/cohort-dist/cohort/autograd"
	agdist "github.com/cohort-dist/cohort/autograd/dist"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/examples/internal/curve"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

const (
	steps  = 200
	points = 256
	parts  = 4
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	_, err := train(ctx, steps, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// stage is a worker with its part of the network.
type stage struct {
	engine *agdist.Engine
	agent  *rpc.Agent
	net    nn.Sequence
}

// join starts the worker of a stage.
func join(ctx context.Context, st store.Store, name string, net nn.Sequence) (*stage, error) {
	s := &stage{engine: agdist.New(), net: net}
	reg := rpc.NewRegistry()
	err := errors.Join(
		// The stage's own part, and then those of the workers behind it.
		reg.Handle("stage.forward", func(ctx context.Context, behind []string, x *autograd.Variable) (*autograd.Variable, error) {
			y := s.net.Forward(x)
			if len(behind) == 0 || y.Err() != nil {
				return y, y.Err()
			}
			return rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), behind[0], "stage.forward", behind[1:], y)
		}),
		reg.Handle("stage.parameter", func(i int) *autograd.Variable { return nn.Variables(s.net)[i] }),
		reg.Handle("stage.parameters", func() int { return len(nn.Variables(s.net)) }),
		remote.Serve(reg, s.engine, nil),
	)
	if err == nil {
		s.agent, err = rpc.Join(ctx, st, name, rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), s.engine.Join())
	}
	return s, err
}

// result is what a run achieved.
type result struct {
	losses   []float64
	accuracy float64
}

func train(ctx context.Context, steps int, out io.Writer) (*result, error) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // initial weights
	nets := []nn.Sequence{
		{nn.NewLinear(random, 2, 32), nn.Tanh},
		{nn.NewLinear(random, 32, 32), nn.Tanh},
		{nn.NewLinear(random, 32, 2)},
	}
	var stages []*stage
	var names []string
	for i, net := range nets {
		name := fmt.Sprintf("stage%d", i)
		s, err := join(ctx, st, name, net)
		if err != nil {
			return nil, err
		}
		defer func() { _ = s.agent.Close() }()
		stages, names = append(stages, s), append(names, name)
	}
	first := stages[0]
	params, err := parameters(ctx, first.agent, names)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, p := range params {
			_ = p.Close()
		}
	}()
	opt, err := remote.New(ctx, first.agent, optim.Adam{LR: 0.03}, params)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opt.Close() }()
	inputs, classes, err := spirals()
	if err != nil {
		return nil, err
	}
	r := &result{}
	for step := range steps {
		loss, failed := first.step(ctx, names, inputs, classes, opt)
		if failed != nil {
			return nil, failed
		}
		r.losses = append(r.losses, loss)
		if (step+1)%50 == 0 {
			fmt.Fprintf(out, "step %3d/%d  loss %.4f\n", step+1, steps, loss)
		}
	}
	if r.accuracy, err = first.accuracy(ctx, names, inputs, classes); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(out, "\n%s\n%d stages, %.1f%% of %d points on the right spiral\n", curve.Draw(r.losses), len(stages), 100*r.accuracy, points)
	return r, err
}

// parameters returns references to all parameters of all stages.
func parameters(ctx context.Context, a *rpc.Agent, names []string) (all []*rpc.Ref[*autograd.Variable], err error) {
	for _, name := range names {
		n, err := rpc.Call[int](ctx, a, name, "stage.parameters")
		if err != nil {
			return all, err
		}
		for i := range n {
			ref, err := rpc.Remote[*autograd.Variable](ctx, a, name, "stage.parameter", i)
			if err != nil {
				return all, err
			}
			all = append(all, ref)
		}
	}
	return all, nil
}

// step sends a batch through the pipeline in parts, and changes all parameters by the gradient of the loss.
func (s *stage) step(ctx context.Context, names []string, inputs, classes *tensor.Tensor, opt *remote.Optimizer) (float64, error) {
	gctx, c, err := s.engine.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	futures := make([]*dist.Future[*autograd.Variable], parts)
	for i := range futures {
		part, err := inputs.Narrow(0, i*points/parts, points/parts)
		if err != nil {
			return 0, err
		}
		futures[i] = rpc.Async[*autograd.Variable](gctx, s.agent, names[0], "stage.forward", names[1:], autograd.Constant(part))
	}
	var losses []*autograd.Variable
	total := 0.0
	for i, f := range futures {
		y, err := f.Await(gctx)
		if err != nil {
			return 0, err
		}
		want, err := classes.Narrow(0, i*points/parts, points/parts)
		if err != nil {
			return 0, err
		}
		loss := autograd.CrossEntropy(y, want, autograd.ReduceMean).Scale(1.0 / parts)
		losses = append(losses, loss)
		total += loss.Item()
	}
	return total, errors.Join(c.Backward(gctx, losses), opt.Step(gctx, c))
}

// accuracy is how many of all points are on the spiral that the network says.
func (s *stage) accuracy(ctx context.Context, names []string, inputs, classes *tensor.Tensor) (float64, error) {
	y, err := rpc.Call[*autograd.Variable](ctx, s.agent, names[0], "stage.forward", names[1:], autograd.Constant(inputs))
	if err != nil {
		return 0, err
	}
	guess, err := tensor.Data[int64](y.ArgMax(-1).Data())
	if err != nil {
		return 0, err
	}
	want, err := tensor.Data[int64](classes)
	right := 0.0
	for i := range want {
		if guess[i] == want[i] {
			right++
		}
	}
	return right / points, err
}

// spirals returns points of two spirals that are wound around each other.
func spirals() (inputs, classes *tensor.Tensor, err error) {
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // noise
	xs, ks := make([]float32, 0, 2*points), make([]int64, 0, points)
	for i := range points {
		k := i % 2
		at := 0.3 + 2.5*math.Pi*random.Float64()
		angle := at + float64(k)*math.Pi
		xs = append(xs, float32(at*math.Cos(angle)/8), float32(at*math.Sin(angle)/8))
		ks = append(ks, int64(k))
	}
	inputs, err1 := tensor.From(xs, points, 2)
	classes, err2 := tensor.From(ks, points)
	return inputs, classes, errors.Join(err1, err2)
}
