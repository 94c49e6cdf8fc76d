// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd_test

import (
	"context"
	"fmt"
	"math"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

func Example() {
	w := autograd.Parameter(tensor.Must(tensor.From([]float32{1, 2}, 2, 1)))
	x := autograd.Constant(tensor.Must(tensor.From([]float32{3, 4}, 1, 2)))
	y := x.MatMul(w).ReLU()
	loss := y.Mul(y).Mean()
	if err := loss.Backward(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(loss.Item())
	fmt.Println(w.Grad())
	// Output:
	// 121
	// tensor([[66.],
	//         [88.]])
}

// softplus is log(1 + exp(x)), whose derivative is the sigmoid.
type softplus struct{}

func (softplus) Forward(c *autograd.Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	x, err := tensor.Copy[float64](in[0])
	if err != nil {
		return nil, err
	}
	c.Save(in[0])
	for i, v := range x {
		x[i] = math.Log1p(math.Exp(v))
	}
	out, err := tensor.From(x, in[0].Shape()...)
	return []*tensor.Tensor{out}, err
}

func (softplus) Backward(c *autograd.Context, grads []*tensor.Tensor) ([]*tensor.Tensor, error) {
	x, g := autograd.Constant(c.Saved()[0]), autograd.Constant(grads[0])
	out := g.Mul(x.Sigmoid())
	return []*tensor.Tensor{out.Data()}, out.Err()
}

func ExampleApply() {
	x := autograd.Parameter(tensor.Must(tensor.From([]float64{0, 1})))
	out, err := autograd.Apply(softplus{}, x)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := out[0].Sum().Backward(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x.Grad())
	// Output:
	// tensor([0.5000, 0.7311], dtype=torch.float64)
}
