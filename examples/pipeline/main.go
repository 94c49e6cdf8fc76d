// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command pipeline trains a network that is cut into three stages, each at its own worker. A batch goes through them in four
// parts, so that all stages work at once; one backward pass over all workers finds the gradients, and every worker changes its
// own parameters:
//
//	go run ./examples/pipeline
//
// The network learns which of two spirals a point lies on. It prints the loss, a curve, and how many points it gets right. The
// three workers are in this process, over TCP; nothing in the code would differ if they were on three machines. That code, the
// workers and a step of the training, is in examples/internal/stages.
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
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/examples/internal/curve"
	"github.com/cohort-dist/cohort/examples/internal/stages"
	"github.com/cohort-dist/cohort/optim"
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

// result is what a run achieved.
type result struct {
	losses   []float64
	accuracy float64
}

func train(ctx context.Context, steps int, out io.Writer) (*result, error) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // initial weights
	net, err := stages.Start(ctx, st, optim.Adam{LR: 0.03},
		nn.Sequential{nn.NewLinear(random, 2, 32), nn.Tanh},
		nn.Sequential{nn.NewLinear(random, 32, 32), nn.Tanh},
		nn.Sequential{nn.NewLinear(random, 32, 2)},
	)
	if err != nil {
		return nil, err
	}
	defer net.Close()
	inputs, classes, err := spirals()
	if err != nil {
		return nil, err
	}
	r := &result{}
	if r.losses, err = net.Train(ctx, steps, parts, out,
		func() (*tensor.Tensor, *tensor.Tensor, error) { return inputs, classes, nil }); err != nil {
		return nil, err
	}
	if r.accuracy, err = accuracy(ctx, net, inputs, classes); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(out, "\n%s\n3 stages, %.1f%% of %d points on the right spiral\n", curve.Draw(r.losses), 100*r.accuracy, points)
	return r, err
}

// accuracy is how many of all points are on the spiral that the network predicts.
func accuracy(ctx context.Context, net *stages.Pipeline, inputs, classes *tensor.Tensor) (float64, error) {
	y, err := net.Forward(ctx, autograd.Constant(inputs))
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
