// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

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
