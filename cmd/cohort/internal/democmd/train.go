// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// train lets the ranks fit a network to a curve.
func train(ctx context.Context, s *stage) (string, error) {
	g, err := group.New(ctx, s.world.Store(), s.world.Rank(), s.world.Size(), group.WithName("train"))
	if err != nil {
		return "", err
	}
	defer func() { _ = g.Close() }()
	start := time.Now()
	first, last, err := fit(ctx, g)
	if err != nil {
		return "", err
	}
	took := time.Since(start)
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("trained a network together, %d steps in %d ms: the loss fell from %.3f to %.3f", fitSteps, took.Milliseconds(), first, last), nil
}

// fitSteps is how many steps fit takes.
const fitSteps = 200

// fit fits a small network to a curve, data-parallel: every rank has points of its own, and all end with the same network. It
// returns this rank's first and last loss. demo_rank.py does the same.
func fit(ctx context.Context, g *group.Group) (first, last float64, err error) {
	const batch, hidden = 32, 16
	random := rand.New(rand.NewPCG(1, uint64(g.Rank()))) //nolint:gosec // weights and points
	net := nn.Sequential{nn.NewLinear(random, 1, hidden), nn.Tanh, nn.NewLinear(random, hidden, 1)}
	model, err := ddp.New(ctx, g, net)
	if err != nil {
		return 0, 0, err
	}
	defer model.Close()
	opt, err := optim.New(optim.Adam{LR: 0.03}, nn.Variables(net))
	if err != nil {
		return 0, 0, err
	}
	for step := range fitSteps {
		xs, ys := make([]float32, batch), make([]float32, batch)
		for i := range xs {
			x := 2*random.Float64() - 1
			xs[i], ys[i] = float32(x), float32(math.Sin(3*x))
		}
		x, y := tensor.Must(tensor.From(xs, batch, 1)), tensor.Must(tensor.From(ys, batch, 1))
		opt.ZeroGrad()
		loss := autograd.MSE(model.Forward(ctx, autograd.Constant(x)), autograd.Constant(y), autograd.ReduceMean)
		if err := loss.Backward(ctx); err != nil {
			return 0, 0, err
		}
		if err := opt.Step(); err != nil {
			return 0, 0, err
		}
		if last = loss.Item(); step == 0 {
			first = last
		}
	}
	if last > first/2 {
		return first, last, fmt.Errorf("the loss went from %.3f to %.3f only", first, last)
	}
	return first, last, nil
}
