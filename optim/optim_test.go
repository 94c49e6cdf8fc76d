// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
)

func parameter(x ...float64) *autograd.Variable {
	return autograd.Parameter(tensor.Must(tensor.From(x)))
}

// TestRulesFindTheMinimum: every rule gets close to the minimum of a bowl, in both types.
func TestRulesFindTheMinimum(t *testing.T) {
	t.Parallel()
	for _, rule := range []optim.Rule{
		optim.SGD{LR: 0.1},
		optim.SGD{LR: 0.05, Momentum: 0.8},
		optim.SGD{LR: 0.05, Momentum: 0.8, Nesterov: true},
		optim.Adam{LR: 0.1},
		optim.AdamW{LR: 0.1},
		optim.Adagrad{LR: 0.8},
		optim.RMSprop{LR: 0.02},
		optim.RMSprop{LR: 0.01, Momentum: 0.5, Centered: true},
	} {
		for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64} {
			x := autograd.Parameter(autograd.Constant(tensor.Must(tensor.From([]float64{3, -2}))).To(dt).Data())
			opt, err := optim.New(rule, []*autograd.Variable{x})
			if err != nil {
				t.Fatal(err)
			}
			for range 300 {
				opt.ZeroGrad()
				if err := x.Shift(-1).Pow(2).Sum().Backward(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := opt.Step(); err != nil {
					t.Fatal(err)
				}
			}
			if far := x.Shift(-1).Abs().Max().Item(); !(far < 0.05) {
				t.Errorf("%T%+v of %v: %v away", rule, rule, dt, far)
			}
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	x := parameter(1)
	for _, c := range []struct {
		rule   optim.Rule
		params []*autograd.Variable
	}{
		{nil, []*autograd.Variable{x}},
		{optim.SGD{LR: 1}, nil},
		{optim.SGD{LR: 1}, []*autograd.Variable{x, x}},
		{optim.SGD{LR: 1}, []*autograd.Variable{x.Scale(2)}},
		{optim.SGD{LR: -1}, []*autograd.Variable{x}},
		{optim.SGD{LR: math.NaN()}, []*autograd.Variable{x}},
		{optim.SGD{LR: 1, Nesterov: true}, []*autograd.Variable{x}},
		{optim.Adam{LR: 1, Beta1: 1}, []*autograd.Variable{x}},
		{optim.AdamW{LR: 1, Eps: -1}, []*autograd.Variable{x}},
		{optim.Adagrad{LR: 1, LRDecay: -1}, []*autograd.Variable{x}},
		{optim.RMSprop{LR: 1, Alpha: -1}, []*autograd.Variable{x}},
		{optim.SGD{LR: 1}, []*autograd.Variable{autograd.Constant(tensor.Must(tensor.From([]int64{1})))}},
	} {
		if _, err := optim.New(c.rule, c.params); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%T%+v: %v", c.rule, c.rule, err)
		}
	}
	opt, err := optim.New(optim.SGD{LR: 1}, []*autograd.Variable{x})
	if err != nil {
		t.Fatal(err)
	}
	wrong := tensor.Must(tensor.From([]float64{1, 2}))
	if err := opt.StepWith(func(*autograd.Variable) autograd.Value { return autograd.Value{Dense: wrong} }); !errors.Is(err,
		cohort.InvalidArgument) {
		t.Errorf("a gradient of another shape: %v", err)
	}
	if err := opt.Step(); err != nil || x.Item() != 1 {
		t.Errorf("a step without gradients: %v, parameter %v", err, x)
	}
}

func TestClipping(t *testing.T) {
	t.Parallel()
	x, y, none := parameter(0), parameter(0), parameter(0)
	set := func() {
		for v, g := range map[*autograd.Variable]float64{x: 3, y: -4} {
			if err := v.SetGrad(tensor.Must(tensor.From([]float64{g}))); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := []*autograd.Variable{x, y, none}
	set()
	if n, err := optim.ClipGradNorm(all, 1, 2); err != nil || n != 5 {
		t.Errorf("norm %v, %v", n, err)
	}
	if g, _ := tensor.Copy[float64](y.Grad()); math.Abs(g[0]+0.8) > 1e-6 {
		t.Errorf("clipped to %v", g)
	}
	set()
	if n, err := optim.ClipGradNorm(all, 100, math.Inf(1)); err != nil || n != 4 {
		t.Errorf("largest %v, %v", n, err)
	}
	if err := optim.ClipGradValue(all, 3.5); err != nil {
		t.Fatal(err)
	}
	if g, _ := tensor.Copy[float64](y.Grad()); g[0] != -3.5 {
		t.Errorf("limited to %v", g)
	}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	at := func(s optim.Schedule, steps ...int) (out []float64) {
		for _, n := range steps {
			out = append(out, math.Round(s(n)*1e6)/1e6)
		}
		return out
	}
	for name, c := range map[string][2][]float64{
		"step":        {at(optim.StepLR(1, 2, 0.5), 0, 1, 2, 5), {1, 1, 0.5, 0.25}},
		"multi step":  {at(optim.MultiStepLR(1, []int{2, 3}, 0.5), 1, 2, 3, 9), {1, 0.5, 0.25, 0.25}},
		"exponential": {at(optim.ExponentialLR(1, 0.5), 0, 3), {1, 0.125}},
		"cosine":      {at(optim.CosineAnnealingLR(1, 4, 0), 0, 2, 4, 8), {1, 0.5, 0, 1}},
		"linear":      {at(optim.LinearLR(1, 0.5, 1, 2), 0, 1, 2, 3), {0.5, 0.75, 1, 1}},
		"sequential": {
			at(optim.SequentialLR([]optim.Schedule{optim.LinearLR(1, 0, 1, 2), optim.ExponentialLR(1, 0.5)}, []int{2}), 0, 1, 2, 3),
			{0, 0.5, 1, 0.5},
		},
	} {
		if !slices.Equal(c[0], c[1]) {
			t.Errorf("%s: %v, want %v", name, c[0], c[1])
		}
	}
}

func ExampleNew() {
	x := autograd.Parameter(tensor.Must(tensor.From([]float32{4})))
	opt, err := optim.New(optim.SGD{LR: 0.25}, []*autograd.Variable{x})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		opt.ZeroGrad()
		loss := x.Pow(2).Sum()
		if err := loss.Backward(context.Background()); err != nil {
			fmt.Println(err)
			return
		}
		if err := opt.Step(); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(loss.Item(), x.Data())
	}
	// Output:
	// 16 tensor([2.])
	// 4 tensor([1.])
	// 1 tensor([0.5000])
}

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
