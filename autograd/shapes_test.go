// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

// TestRetainedGradient: a variable that keeps its gradient adds up those of all passes, once each, however often it was told to.
func TestRetainedGradient(t *testing.T) {
	t.Parallel()
	x := autograd.Parameter(tensor.Must(tensor.From([]float64{2, 3})))
	y := x.Mul(x)
	if err := errors.Join(y.RetainGrad(), y.RetainGrad()); err != nil {
		t.Fatal(err)
	}
	for pass := 1; pass <= 2; pass++ {
		if err := y.Sum().Backward(t.Context(), autograd.RetainGraph()); err != nil {
			t.Fatal(err)
		}
		if want := tensor.Must(tensor.Full(tensor.Float64, pass, 2)); !tensor.Equal(y.Grad(), want) {
			t.Errorf("after pass %d the gradient is %v, want %v", pass, y.Grad(), want)
		}
	}
}

// TestRareShapes: a scalar has a dimension to exchange with itself, a weight with one dimension is one output, and a layer norm refuses
// what only broadcasts.
func TestRareShapes(t *testing.T) {
	t.Parallel()
	scalar := tensor.Must(tensor.Full(tensor.Float64, 3.0))
	row, column := tensor.Must(tensor.From([]float64{1, 2, 3})), tensor.Must(tensor.From([]float64{1, 2, 4}, 3, 1))
	for name, c := range map[string]struct {
		f      func(in []*autograd.Variable) *autograd.Variable
		inputs []*tensor.Tensor
	}{
		"transpose": {func(in []*autograd.Variable) *autograd.Variable { return in[0].Transpose(0, -1) }, []*tensor.Tensor{scalar}},
		"linear": {func(in []*autograd.Variable) *autograd.Variable {
			return autograd.Linear(in[0].Mul(in[1]), in[0], in[2])
		}, []*tensor.Tensor{row, column, scalar}},
	} {
		if err := autograd.GradCheck(t.Context(), c.f, c.inputs, 1e-6, 1e-6); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, w := range []*tensor.Tensor{scalar, column} {
		weight := autograd.Constant(w)
		for _, out := range []*autograd.Variable{
			autograd.LayerNorm(autograd.Constant(row), weight, nil, 1, 1e-5),
			autograd.LayerNorm(autograd.Constant(row), nil, weight, 1, 1e-5),
		} {
			if !errors.Is(out.Err(), cohort.InvalidArgument) {
				t.Errorf("a layer norm with a weight or bias of shape %v: %v", w.Shape(), out)
			}
		}
	}
	if _, err := scalar.Transpose(0, 1); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("a scalar with two dimensions: %v", err)
	}
}
