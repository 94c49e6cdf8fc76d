// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

// TestGradMemory: a product goes straight to the memory that was lent for the gradient where that is right, and nowhere else; the
// gradient is the same in any case.
func TestGradMemory(t *testing.T) {
	t.Parallel()
	matrix := func(from float32) *tensor.Tensor {
		return tensor.Must(tensor.From([]float32{from, from + 1, from + 2, from + 3, from + 4, from + 5}, 2, 3))
	}
	x := autograd.Constant(matrix(1))
	linear := func(w *autograd.Variable) *autograd.Variable { return autograd.Linear(x, w, nil) }
	both := func(w *autograd.Variable) *autograd.Variable { return linear(w).Add(autograd.Linear(x, w, nil)) }
	product := func(w *autograd.Variable) *autograd.Variable {
		return autograd.Constant(matrix(2)).MatMul(w.Transpose(0, 1))
	}
	left := func(w *autograd.Variable) *autograd.Variable {
		return w.MatMul(autograd.Constant(tensor.Must(matrix(2).Transpose(0, 1))))
	}
	hook := func(w *autograd.Variable) error {
		_, err := w.OnGrad(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, nil })
		return err
	}
	for name, c := range map[string]struct {
		forward func(w *autograd.Variable) *autograd.Variable
		prepare func(w *autograd.Variable) error
		inside  bool
	}{
		"linear":                      {linear, nil, true},
		"matmul":                      {left, nil, true},
		"of a view":                   {product, nil, false},
		"two gradients":               {both, nil, false},
		"a hook that may keep it":     {linear, hook, false},
		"a gradient that is added to": {linear, func(w *autograd.Variable) error { return w.SetGrad(matrix(0)) }, false},
		"memory that was taken back":  {linear, func(w *autograd.Variable) error { return w.SetGradMemory(nil) }, false},
	} {
		run := func(lend bool) (memory *tensor.Tensor, w *autograd.Variable) {
			w = autograd.Parameter(matrix(7))
			memory = matrix(100)
			if lend {
				if err := w.SetGradMemory(memory); err != nil {
					t.Fatal(err)
				}
			}
			if c.prepare != nil {
				if err := c.prepare(w); err != nil {
					t.Fatal(err)
				}
			}
			backward(t, c.forward(w).Sum())
			return memory, w
		}
		memory, w := run(true)
		_, plain := run(false)
		if got, want := values(t, w.Grad()), values(t, plain.Grad()); !slices.Equal(got, want) {
			t.Errorf("%s: gradient %v, want %v", name, got, want)
		}
		if inside := w.Grad() == memory; inside != c.inside {
			t.Errorf("%s: in the memory: %v", name, inside)
		}
		if !c.inside && values(t, memory)[0] != 100 {
			t.Errorf("%s: the memory was written to", name)
		}
	}
	// A second pass adds in place; what is captured does not use the memory.
	w, memory := autograd.Parameter(matrix(7)), matrix(100)
	if err := w.SetGradMemory(memory); err != nil {
		t.Fatal(err)
	}
	gs, err := autograd.Grad(t.Context(), []*autograd.Variable{linear(w).Sum()}, nil, []*autograd.Variable{w})
	if err != nil || gs[0].Dense == memory || values(t, memory)[0] != 100 {
		t.Errorf("captured: %v, %v", gs, err)
	}
	backward(t, linear(w).Sum())
	once := values(t, w.Grad())
	backward(t, linear(w).Sum())
	for i, g := range values(t, memory) {
		if g != 2*once[i] || w.Grad() != memory {
			t.Errorf("after two passes: %v", w.Grad())
		}
	}
	for _, bad := range []*tensor.Tensor{tensor.Must(matrix(1).Transpose(0, 1)), tensor.Must(tensor.New(tensor.Float64, 2, 3))} {
		if err := w.SetGradMemory(bad); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestKeptGradient: as in PyTorch, a gradient that the program has kept does not change after ZeroGrad, whatever passes follow. Without
// ZeroGrad the next pass adds to it in place.
func TestKeptGradient(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(x *autograd.Variable) *autograd.Variable{
		"new tensors":         func(x *autograd.Variable) *autograd.Variable { return x.Mul(x).Sum() },
		"matrix product":      func(x *autograd.Variable) *autograd.Variable { return x.Reshape(2, 2).MatMul(x.Reshape(2, 2)).Sum() },
		"shared by two":       func(x *autograd.Variable) *autograd.Variable { return x.Add(x.Scale(3)).Sum() },
		"views of a gradient": func(x *autograd.Variable) *autograd.Variable { return x.Reshape(2, 2).Transpose(0, 1).Sum() },
	} {
		x := leaf(1, 2, 3, 4)
		backward(t, f(x))
		kept := x.Grad()
		before := values(t, kept)
		x.ZeroGrad()
		for range 3 { // the first sets a gradient, the others add to it
			backward(t, f(x.Scale(5)))
		}
		if !slices.Equal(values(t, kept), before) {
			t.Errorf("%s: the gradient %v has become %v", name, before, values(t, kept))
		}
		now := x.Grad()
		backward(t, f(x))
		if x.Grad() != now {
			t.Errorf("%s: the sum is another tensor", name)
		}
	}
}

// TestGivenGradients: gradients that are given to a pass are not changed by it or by later ones, nor are those that two leaves share.
func TestGivenGradients(t *testing.T) {
	t.Parallel()
	x, y := leaf(1, 2), leaf(3, 4)
	seed := tensor.Must(tensor.From([]float32{7, 8}))
	for range 3 {
		if err := autograd.Backward(t.Context(), []*autograd.Variable{x, x.Add(y)},
			[]autograd.Value{{Dense: seed}, {Dense: seed}}); err != nil {
			t.Fatal(err)
		}
	}
	wantGrad(t, x, 42, 48)
	wantGrad(t, y, 21, 24)
	if !slices.Equal(values(t, seed), []float32{7, 8}) {
		t.Errorf("the given gradient has become %v", seed)
	}
}
