// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

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

// train fits a small network to a curve, data-parallel: every rank has points of its own, and all end with the same network.
func train(ctx context.Context, s *stage) (string, error) {
	const steps, batch, hidden = 200, 32, 16
	rank, size := int(s.world.Rank()), s.world.Size()
	g, err := group.New(ctx, s.world.Store(), rank, size, group.WithName("train"))
	if err != nil {
		return "", err
	}
	defer func() { _ = g.Close() }()
	random := rand.New(rand.NewPCG(1, uint64(rank))) //nolint:gosec // weights and points
	net := nn.Sequence{nn.NewLinear(random, 1, hidden), nn.Tanh, nn.NewLinear(random, hidden, 1)}
	model, err := ddp.New(ctx, g, net)
	if err != nil {
		return "", err
	}
	opt, err := optim.New(optim.Adam{LR: 0.03}, nn.Variables(net))
	if err != nil {
		return "", err
	}
	start := time.Now()
	var first, last float64
	for step := range steps {
		xs, ys := make([]float32, batch), make([]float32, batch)
		for i := range xs {
			x := 2*random.Float64() - 1
			xs[i], ys[i] = float32(x), float32(math.Sin(3*x))
		}
		x, y := tensor.Must(tensor.From(xs, batch, 1)), tensor.Must(tensor.From(ys, batch, 1))
		opt.ZeroGrad()
		loss := autograd.MSE(model.Forward(ctx, autograd.Constant(x)), autograd.Constant(y), autograd.ReduceMean)
		if err := loss.Backward(ctx); err != nil {
			return "", err
		}
		if err := opt.Step(); err != nil {
			return "", err
		}
		if last = loss.Item(); step == 0 {
			first = last
		}
	}
	took := time.Since(start)
	if last > first/2 {
		return "", fmt.Errorf("the loss went from %.3f to %.3f only", first, last)
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("trained a network together, %d steps in %d ms: the loss fell from %.3f to %.3f", steps, took.Milliseconds(), first, last), nil
}
