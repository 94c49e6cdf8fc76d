// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// MatMul multiplies matrices, batches of them whose leading dimensions broadcast, and vectors. It corresponds to
// torch.matmul.
func (v *Variable) MatMul(w *Variable) *Variable { return apply(&matmul{}, v, w) }

type matmul struct{}

func (f *matmul) fresh() {}

func (f *matmul) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	c.Save(in...)
	return one(tensorops.MatMul(in[0], in[1]))
}

func (f *matmul) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	a, b := c.Saved()[0], c.Saved()[1]
	grad := g[0]
	aShape, bShape := a.Shape(), b.Shape()
	// Vectors are matrices here, and become vectors again at the end.
	var err error
	gShape := grad.Shape()
	if b.Dims() == 1 {
		if b, err = b.Reshape(-1, 1); err != nil {
			return nil, err
		}
		gShape = append(gShape, 1)
	}
	if a.Dims() == 1 {
		if a, err = a.Reshape(1, -1); err != nil {
			return nil, err
		}
		gShape = append(gShape[:len(gShape)-1:len(gShape)-1], 1, gShape[len(gShape)-1])
	}
	if grad, err = grad.Reshape(gShape...); err != nil {
		return nil, err
	}
	out := make(tensors, 2)
	if c.NeedsGrad(0) {
		if out[0], err = product2(c.room(0), grad, b, false, true, aShape, len(aShape) == 1); err != nil {
			return nil, err
		}
	}
	if c.NeedsGrad(1) {
		if b.Dims() == 2 && a.Dims() > 2 { // one matrix for the whole batch: one product instead of a sum of many
			if a, err = asMatrix(a); err != nil {
				return nil, err
			}
			if grad, err = asMatrix(grad); err != nil {
				return nil, err
			}
		}
		if out[1], err = product2(c.room(1), a, grad, true, false, bShape, len(bShape) == 1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// asMatrix makes all dimensions but the last one a single one. Reshape cannot infer how many rows without elements there are.
func asMatrix(t *tensor.Tensor) (*tensor.Tensor, error) {
	return t.Reshape(product(t.Shape()[:t.Dims()-1]), t.Dim(-1))
}

// product2 multiplies with either side transposed and brings the result to the shape of the operand it is the gradient of. The result
// is in room where that fits.
func product2(room, a, b *tensor.Tensor, transA, transB bool, shape []int, vector bool) (*tensor.Tensor, error) {
	var err error
	if transA {
		if a, err = a.Transpose(-2, -1); err != nil {
			return nil, err
		}
	}
	if transB {
		if b, err = b.Transpose(-2, -1); err != nil {
			return nil, err
		}
	}
	out, err := tensorops.MatMulInto(room, a, b)
	if err != nil {
		return nil, err
	}
	if vector {
		// A vector was one row or one column: the other dimensions are the batch.
		if out, err = out.Reshape(product(out.Shape()[:out.Dims()-2]), shape[0]); err != nil {
			return nil, err
		}
		return tensorops.Sum(out, []int{0}, false)
	}
	return tensorops.SumTo(out, shape)
}

// Linear returns x times the transposed weight plus bias, which is broadcast and may be nil. A weight with one
// dimension stands for one output, which has no dimension then. It corresponds to torch.nn.functional.linear.
func Linear(x, weight, bias *Variable) *Variable {
	if weight.Err() == nil && weight.Dims() == 1 && (bias == nil || bias.Err() == nil && bias.Dims() == 0) {
		out := x.MatMul(weight)
		if bias != nil {
			out = out.Add(bias)
		}
		return out
	}
	if bias == nil {
		return apply(&linear{}, x, weight)
	}
	return apply(&linear{}, x, weight, bias)
}

type linear struct{ bias []int } // its shape

func (f *linear) fresh() {}

func (f *linear) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if in[1].Dims() != 2 || in[0].Dims() == 0 || in[0].Dim(-1) != in[1].Dim(1) {
		return nil, cohort.Newf("autograd: linear", cohort.InvalidArgument, "an input of shape %v with a weight of shape %v",
			in[0].Shape(), in[1].Shape())
	}
	c.Save(in[0], in[1])
	w, err := in[1].Transpose(0, 1)
	if err != nil {
		return nil, err
	}
	out, err := tensorops.MatMul(in[0], w)
	if err != nil || len(in) < 3 {
		return one(out, err)
	}
	f.bias = in[2].Shape()
	if len(f.bias) == 1 && f.bias[0] == in[1].Dim(0) {
		return one(tensorops.AddBias(out, in[2]))
	}
	if _, err = tensorops.Expand(in[2], out.Shape()); err != nil {
		return nil, cohort.Newf("autograd: linear", cohort.InvalidArgument, "a bias of shape %v with outputs of shape %v", f.bias,
			out.Shape())
	}
	return one(tensorops.Binary(tensorops.Add, tensorops.Of(out), tensorops.Of(in[2])))
}

func (f *linear) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	x, w := c.Saved()[0], c.Saved()[1]
	out := make(tensors, 3)
	grad, err := asMatrix(g[0])
	if err != nil {
		return nil, err
	}
	if c.NeedsGrad(0) {
		if out[0], err = tensorops.MatMul(grad, w); err != nil {
			return nil, err
		}
		if out[0], err = out[0].Reshape(x.Shape()...); err != nil {
			return nil, err
		}
	}
	if c.NeedsGrad(1) {
		var flat *tensor.Tensor
		if flat, err = asMatrix(x); err != nil {
			return nil, err
		}
		if out[1], err = product2(c.room(1), grad, flat, true, false, w.Shape(), false); err != nil {
			return nil, err
		}
	}
	if c.NeedsGrad(2) {
		if out[2], err = tensorops.SumTo(g[0], f.bias); err != nil {
			return nil, err
		}
	}
	return out[:len(c.needs)], nil
}
