// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

// BenchmarkTrainStep is one step of a 784-256-10 network with a batch of 64.
func BenchmarkTrainStep(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	net := nn.Sequential{nn.NewLinear(r, 784, 256), nn.ReLU, nn.NewLinear(r, 256, 10)}
	opt, err := optim.New(optim.SGD{LR: 0.01}, nn.Variables(net))
	if err != nil {
		b.Fatal(err)
	}
	x, y := make([]float32, 64*784), make([]int64, 64)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for i := range y {
		y[i] = r.Int64N(10)
	}
	in, want := autograd.Constant(tensor.Must(tensor.From(x, 64, 784))), tensor.Must(tensor.From(y))
	for b.Loop() {
		opt.ZeroGrad()
		if err := autograd.CrossEntropy(net.Forward(in), want, autograd.ReduceMean).Backward(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := opt.Step(); err != nil {
			b.Fatal(err)
		}
	}
}
