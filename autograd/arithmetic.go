// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

type tensors = []*tensor.Tensor

// one is the result of a function with one output, or gradient with one input.
func one(t *tensor.Tensor, err error) (tensors, error) {
	if err != nil {
		return nil, err
	}
	return tensors{t}, nil
}

func binary(op tensorops.Op, a, b *tensor.Tensor) (*tensor.Tensor, error) {
	return tensorops.Binary(op, tensorops.Of(a), tensorops.Of(b))
}

func times(t *tensor.Tensor, f float64) (*tensor.Tensor, error) {
	return tensorops.Binary(tensorops.Mul, tensorops.Of(t), tensorops.Num(f))
}

// Add, Sub, Mul and Div combine variables element by element. Shapes broadcast and types promote as in PyTorch.

// Add returns v + w. It corresponds to torch.add.
func (v *Variable) Add(w *Variable) *Variable {
	return apply(&addSub{op: tensorops.Add, sign: 1}, v, w)
}

// Sub returns v - w. It corresponds to torch.sub.
func (v *Variable) Sub(w *Variable) *Variable {
	return apply(&addSub{op: tensorops.Sub, sign: -1}, v, w)
}

type addSub struct {
	op   tensorops.Op
	sign float64
}

func (f *addSub) Name() string { return f.op.String() }

func (f *addSub) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(binary(f.op, in[0], in[1]))
}

// Backward returns the gradient itself for both: the engine sums it where a shape was broadcast.
func (f *addSub) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	out := tensors{g[0], g[0]}
	if f.sign < 0 && c.NeedsGrad(1) {
		var err error
		if out[1], err = tensorops.Unary(tensorops.Neg, g[0]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Mul returns v * w. It corresponds to torch.mul.
func (v *Variable) Mul(w *Variable) *Variable { return apply(&mul{}, v, w) }

type mul struct{}

func (f *mul) fresh() {}

func (f *mul) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	c.Save(in...)
	return one(binary(tensorops.Mul, in[0], in[1]))
}

func (f *mul) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	in, out := c.Saved(), make(tensors, 2)
	for i := range out {
		if c.NeedsGrad(i) {
			var err error
			if out[i], err = binary(tensorops.Mul, g[0], in[1-i]); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Div returns v / w. It corresponds to torch.div.
func (v *Variable) Div(w *Variable) *Variable { return apply(&div{}, v, w) }

type div struct{}

func (f *div) fresh() {}

func (f *div) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	c.Save(in...)
	return one(binary(tensorops.Div, in[0], in[1]))
}

func (f *div) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	a, b := c.Saved()[0], c.Saved()[1]
	out := make(tensors, 2)
	ga, err := binary(tensorops.Div, g[0], b)
	if err != nil {
		return nil, err
	}
	if c.NeedsGrad(0) {
		out[0] = ga
	}
	if c.NeedsGrad(1) { // -g * (a/b) / b, as PyTorch computes it
		q, err := binary(tensorops.Div, a, b)
		if err != nil {
			return nil, err
		}
		if q, err = binary(tensorops.Div, q, b); err != nil {
			return nil, err
		}
		if q, err = binary(tensorops.Mul, g[0], q); err != nil {
			return nil, err
		}
		if out[1], err = tensorops.Unary(tensorops.Neg, q); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Scale returns v times a number.
func (v *Variable) Scale(by float64) *Variable { return apply(&linearMap{"scale", by, 0}, v) }

// Shift returns v plus a number.
func (v *Variable) Shift(by float64) *Variable { return apply(&linearMap{"shift", 1, by}, v) }

type linearMap struct {
	name         string
	factor, plus float64
}

func (f *linearMap) Name() string { return f.name }

func (f *linearMap) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if f.name == "shift" {
		return one(tensorops.Binary(tensorops.Add, tensorops.Of(in[0]), tensorops.Num(f.plus)))
	}
	return one(times(in[0], f.factor))
}

func (f *linearMap) Backward(_ *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if f.factor == 1 {
		return g, nil
	}
	return one(times(g[0], f.factor))
}

// Pow returns v to the power of a number. It corresponds to torch.pow with a number as exponent.
func (v *Variable) Pow(exponent float64) *Variable { return apply(&pow{exponent}, v) }

type pow struct{ exponent float64 }

func (f *pow) fresh() {}

func (f *pow) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	c.Save(in[0])
	return one(tensorops.Binary(tensorops.Pow, tensorops.Of(in[0]), tensorops.Num(f.exponent)))
}

func (f *pow) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.Map2("pow", g[0], c.Saved()[0], func(g, x float64) float64 {
		if f.exponent == 0 {
			return 0
		}
		return g * f.exponent * tensorops.Power(x, f.exponent-1)
	}))
}

// To converts to another element type; gradients are converted back. It corresponds to Tensor.to.
func (v *Variable) To(dt tensor.DType) *Variable {
	if v.err == nil && v.DType() == dt {
		return v
	}
	return apply(&convert{to: dt}, v)
}

type convert struct{ to tensor.DType }

func (f *convert) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.Convert(in[0], f.to))
}

// Backward leaves the conversion to the engine.
func (f *convert) Backward(_ *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) { return g, nil }
