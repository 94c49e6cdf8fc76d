// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"math"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// GradCheck compares the gradients of f with finite differences at the given inputs, which are dense float64 tensors. f
// must return the same for the same inputs. Its result is multiplied by fixed weights, so that every element matters. An
// element may differ by atol + rtol times its size; 0 for both means 1e-5 and 1e-3. It corresponds to
// torch.autograd.gradcheck.
func GradCheck(ctx context.Context, f func(inputs []*Variable) *Variable, inputs []*tensor.Tensor, atol, rtol float64) error {
	const op, step = "autograd: grad check", 1e-6
	if atol == 0 && rtol == 0 {
		atol, rtol = 1e-5, 1e-3
	}
	leaves := make([]*Variable, len(inputs))
	values := make([][]float64, len(inputs))
	for i, t := range inputs {
		leaves[i] = Parameter(t)
		var err error
		if values[i], err = tensor.Data[float64](t); err != nil {
			return cohort.Wrap(op, cohort.InvalidArgument, err)
		}
	}
	loss := func(vs []*Variable) *Variable {
		y := f(vs)
		if y.Err() != nil {
			return y
		}
		weights := make([]float64, y.data.Numel())
		for i := range weights {
			weights[i] = math.Sin(float64(3*i + 1))
		}
		w, err := tensor.From(weights)
		if err != nil {
			return failed(err)
		}
		return y.Reshape(-1).Mul(Constant(w)).Sum()
	}
	if err := loss(leaves).Backward(ctx); err != nil {
		return err
	}
	constants := make([]*Variable, len(inputs))
	for i, t := range inputs {
		constants[i] = NoGrad(t)
	}
	for i, x := range values {
		var grad []float64
		if g := leaves[i].Grad(); g != nil {
			var err error
			if grad, err = tensor.Copy[float64](g); err != nil {
				return err
			}
		} else {
			grad = make([]float64, len(x))
		}
		for j, old := range x {
			x[j] = old + step
			up := loss(constants)
			x[j] = old - step
			down := loss(constants)
			x[j] = old
			if err := up.Err(); err != nil {
				return err
			}
			want := (up.Item() - down.Item()) / (2 * step)
			if math.Abs(want-grad[j]) <= atol+rtol*math.Abs(want) {
				continue
			}
			return cohort.Newf(op, cohort.Mismatch, "input %d element %d: the gradient is %v, finite differences give %v", i, j,
				grad[j], want)
		}
	}
	return nil
}
