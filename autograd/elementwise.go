// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"math"

	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// elementwise is a function of one value. Its derivative is a function of the input or of the result, whichever was saved.
type elementwise struct {
	op     tensorops.UnaryOp
	result bool // the derivative is of the result
	slope  func(g, x float64) float64
}

func (f *elementwise) Name() string { return f.op.Name }
func (f *elementwise) fresh()       {}

func (f *elementwise) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	out, err := tensorops.Unary(f.op, in[0])
	if err != nil {
		return nil, err
	}
	if f.result {
		c.Save(out)
	} else {
		c.Save(in[0])
	}
	return tensors{out}, nil
}

func (f *elementwise) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.Map2(f.op.Name, g[0], c.Saved()[0], f.slope))
}

// Neg returns -v. It corresponds to torch.neg.
func (v *Variable) Neg() *Variable {
	if v.err == nil && v.sparse != nil {
		return v.Scale(-1)
	}
	return apply(&elementwise{tensorops.Neg, false, func(g, _ float64) float64 { return -g }}, v)
}

// Abs returns the absolute value; its derivative at 0, and where v is not a number, is 0. It corresponds to torch.abs.
func (v *Variable) Abs() *Variable {
	return apply(&elementwise{tensorops.Abs, false, func(g, x float64) float64 {
		switch {
		case x > 0:
			return g
		case x < 0:
			return -g
		}
		return g * 0 // also where x is not a number
	}}, v)
}

// Exp returns e to the power of v. It corresponds to torch.exp.
func (v *Variable) Exp() *Variable {
	return apply(&elementwise{tensorops.Exp, true, func(g, y float64) float64 { return g * y }}, v)
}

// Log returns the natural logarithm. It corresponds to torch.log.
func (v *Variable) Log() *Variable {
	return apply(&elementwise{tensorops.Log, false, func(g, x float64) float64 { return g / x }}, v)
}

// Sqrt returns the square root. It corresponds to torch.sqrt.
func (v *Variable) Sqrt() *Variable {
	return apply(&elementwise{tensorops.Sqrt, true, func(g, y float64) float64 { return g / (2 * y) }}, v)
}

// Sin returns the sine. It corresponds to torch.sin.
func (v *Variable) Sin() *Variable {
	return apply(&elementwise{tensorops.Sin, false, func(g, x float64) float64 { return g * math.Cos(x) }}, v)
}

// Cos returns the cosine. It corresponds to torch.cos.
func (v *Variable) Cos() *Variable {
	return apply(&elementwise{tensorops.Cos, false, func(g, x float64) float64 { return -g * math.Sin(x) }}, v)
}

// Tanh returns the hyperbolic tangent. It corresponds to torch.tanh.
func (v *Variable) Tanh() *Variable {
	return apply(&elementwise{tensorops.Tanh, true, func(g, y float64) float64 { return g * (1 - y*y) }}, v)
}

// Sigmoid returns 1/(1+exp(-v)). It corresponds to torch.sigmoid.
func (v *Variable) Sigmoid() *Variable {
	return apply(&elementwise{tensorops.Sigmoid, true, func(g, y float64) float64 { return g * y * (1 - y) }}, v)
}

// GELU returns v times the normal distribution function. It corresponds to torch.nn.functional.gelu.
func (v *Variable) GELU() *Variable {
	return apply(&elementwise{tensorops.GELU, false, func(g, x float64) float64 { return g * tensorops.GELUSlope(x, false) }}, v)
}

// GELUTanh is GELU in its approximation by tanh. It corresponds to torch.nn.functional.gelu with approximate="tanh".
func (v *Variable) GELUTanh() *Variable {
	return apply(&elementwise{tensorops.GELUTanh, false, func(g, x float64) float64 { return g * tensorops.GELUSlope(x, true) }}, v)
}

// ReLU returns v where it is positive and 0 elsewhere. It corresponds to torch.relu.
func (v *Variable) ReLU() *Variable { return apply(&relu{}, v) }

type relu struct{}

func (f *relu) fresh() {}

func (f *relu) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	out, err := tensorops.ReLU(in[0])
	c.Save(out)
	return one(out, err)
}

func (f *relu) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.ReLUGrad(g[0], c.Saved()[0]))
}

// Softmax normalises exponentials along a dimension. It corresponds to torch.softmax.
func (v *Variable) Softmax(dim int) *Variable { return apply(&softmax{dim, false}, v) }

// LogSoftmax is the logarithm of [Variable.Softmax]. It corresponds to torch.log_softmax.
func (v *Variable) LogSoftmax(dim int) *Variable { return apply(&softmax{dim, true}, v) }

type softmax struct {
	dim int
	log bool
}

func (f *softmax) fresh() {}

func (f *softmax) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	out, err := tensorops.Softmax(in[0], f.dim, f.log)
	c.Save(out)
	return one(out, err)
}

func (f *softmax) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.SoftmaxGrad(g[0], c.Saved()[0], f.dim, f.log))
}

// MaskedFill returns v with value where mask, a tensor of bools that broadcasts to v, is true. It corresponds to
// Tensor.masked_fill.
func (v *Variable) MaskedFill(mask *tensor.Tensor, value float64) *Variable {
	return apply(&maskedFill{mask, value}, v)
}

type maskedFill struct {
	mask  *tensor.Tensor
	value float64
}

func (f *maskedFill) fresh() {}

func (f *maskedFill) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.MaskedFill(in[0], f.mask, f.value))
}

func (f *maskedFill) Backward(_ *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.MaskedFill(g[0], f.mask, 0))
}
