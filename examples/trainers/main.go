// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command trainers is a parameter server with three trainers that do not wait for each other. The server has the network; each
// trainer sends it batches of its own points, computes the loss of the answer, and runs the backward pass and the step of the
// optimizer, which happen where the parameters are:
//
//	go run ./examples/trainers
//
// The network learns a curve from points that no trainer has all of. Every trainer prints its loss. The workers are in this
// process, over TCP; nothing in the code would differ if they were on four machines.
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
	"sync"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/examples/internal/curve"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

const (
	trainers  = 3
	steps     = 300
	batchSize = 32
	hidden    = 24
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	_, err := run(ctx, steps, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// server has the parameters. Steps change them in place and hold the lock; a forward pass takes copies of them under it, through
// which gradients flow to the parameters.
type server struct {
	mu     sync.RWMutex
	params []*autograd.Variable
}

func newServer() *server {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // initial weights
	return &server{params: nn.Variables(nn.Sequential{nn.NewLinear(random, 1, hidden), nn.NewLinear(random, hidden, 1)})}
}

func (s *server) copies() []*autograd.Variable {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*autograd.Variable, len(s.params))
	for i, p := range s.params {
		all[i] = p.Scale(1)
	}
	return all
}

// forward computes the network: the weights are stored transposed, as those of nn.Linear.
func (s *server) forward(x *autograd.Variable) *autograd.Variable {
	p := s.copies()
	h := x.MatMul(p[0].Transpose(0, 1)).Add(p[1]).Tanh()
	return h.MatMul(p[2].Transpose(0, 1)).Add(p[3])
}

// run starts the server and the trainers, and returns the losses of all of them.
func run(ctx context.Context, steps int, out io.Writer) ([][]float64, error) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	s, engine := newServer(), distautograd.New()
	reg := rpc.NewRegistry()
	err := errors.Join(
		reg.Handle("ps.forward", s.forward),
		reg.Handle("ps.parameter", func(i int) *autograd.Variable { return s.params[i] }),
		reg.Handle("ps.parameters", func() int { return len(s.params) }),
		remote.Serve(reg, engine, &s.mu),
	)
	if err != nil {
		return nil, err
	}
	ps, err := rpc.Join(ctx, st, "ps", rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), engine.Join())
	if err != nil {
		return nil, err
	}
	defer func() { _ = ps.Close() }()
	losses, errs := make([][]float64, trainers), make([]error, trainers)
	var mu sync.Mutex
	report := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(out, format, args...)
	}
	var work sync.WaitGroup
	for i := range trainers {
		work.Go(func() { losses[i], errs[i] = train(ctx, st, i, steps, report) })
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	report("\n%s\n%d trainers, %d steps each\n", curve.Draw(losses[0]), trainers, steps)
	return losses, nil
}

// train is one trainer. It knows the points of its own third of the axis.
func train(ctx context.Context, st store.Store, number, steps int, report func(string, ...any)) ([]float64, error) {
	engine := distautograd.New()
	name := fmt.Sprintf("trainer%d", number)
	a, err := rpc.Join(ctx, st, name, rpc.WithAddr("127.0.0.1:0"), engine.Join())
	if err != nil {
		return nil, err
	}
	defer func() { _ = a.Close() }()
	n, err := rpc.Call[int](ctx, a, "ps", "ps.parameters")
	if err != nil {
		return nil, err
	}
	params := make([]*rpc.Ref[*autograd.Variable], n)
	for i := range params {
		if params[i], err = rpc.Remote[*autograd.Variable](ctx, a, "ps", "ps.parameter", i); err != nil {
			return nil, err
		}
		defer func() { _ = params[i].Close() }()
	}
	opt, err := remote.New(ctx, a, optim.SGD{LR: 0.1}, params)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opt.Close() }()
	random := rand.New(rand.NewPCG(5, uint64(number))) //nolint:gosec // points
	var losses []float64
	for step := range steps {
		loss, err := one(ctx, engine, a, opt, number, random)
		if err != nil {
			return nil, err
		}
		losses = append(losses, loss)
		if (step+1)%50 == 0 {
			report("%s  step %3d/%d  loss %.4f\n", name, step+1, steps, loss)
		}
	}
	return losses, nil
}

// one is one step of a trainer.
func one(ctx context.Context, engine *distautograd.Engine, a *rpc.Agent, opt *remote.Optimizer, number int,
	random *rand.Rand,
) (float64, error) {
	xs, ys := make([]float32, batchSize), make([]float32, batchSize)
	for i := range xs {
		x := 2*(float64(number)+random.Float64())/trainers - 1
		xs[i], ys[i] = float32(x), float32(math.Sin(3*x))
	}
	x, err1 := tensor.From(xs, batchSize, 1)
	y, err2 := tensor.From(ys, batchSize, 1)
	gctx, c, err3 := engine.Open(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	guess, err := rpc.Call[*autograd.Variable](gctx, a, "ps", "ps.forward", x)
	if err != nil {
		return 0, err
	}
	loss := autograd.MSE(guess, autograd.Constant(y), autograd.ReduceMean)
	return loss.Item(), errors.Join(c.Backward(gctx, []*autograd.Variable{loss}), opt.Step(gctx, c))
}
