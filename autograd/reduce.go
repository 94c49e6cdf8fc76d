// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// Sum adds over the given dimensions, or over all when none is given. It corresponds to torch.sum.
func (v *Variable) Sum(dims ...int) *Variable { return v.SumKeep(false, dims...) }

// SumKeep is Sum that keeps the summed dimensions with size 1 when keepdim is set.
func (v *Variable) SumKeep(keepdim bool, dims ...int) *Variable {
	return apply(&sum{dims: dims, keepdim: keepdim}, v)
}

// Mean is the mean over the given dimensions, or over all when none is given. It corresponds to torch.mean.
func (v *Variable) Mean(dims ...int) *Variable { return v.MeanKeep(false, dims...) }

// MeanKeep is Mean that keeps the reduced dimensions with size 1 when keepdim is set.
func (v *Variable) MeanKeep(keepdim bool, dims ...int) *Variable {
	return apply(&sum{dims: dims, keepdim: keepdim, mean: true}, v)
}

type sum struct {
	dims          []int
	keepdim, mean bool
	shape         []int
}

func (f *sum) Name() string {
	if f.mean {
		return "mean"
	}
	return "sum"
}

func (f *sum) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	f.shape = in[0].Shape()
	if f.mean {
		return one(tensorops.Mean(in[0], f.dims, f.keepdim))
	}
	return one(tensorops.Sum(in[0], f.dims, f.keepdim))
}

func (f *sum) Backward(_ *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	grad := g[0]
	if f.mean {
		n, err := tensorops.Reduced(f.shape, f.dims)
		if err != nil {
			return nil, err
		}
		if grad, err = tensorops.Binary(tensorops.Div, tensorops.Of(grad), tensorops.Num(float64(n))); err != nil {
			return nil, err
		}
	}
	return one(tensorops.Unreduce(grad, f.shape, f.dims))
}

// Max returns the largest element of all; several that are equal share the gradient. It corresponds to torch.max(input).
func (v *Variable) Max() *Variable { return apply(&maxAll{}, v) }

type maxAll struct{}

func (f *maxAll) fresh() {}

func (f *maxAll) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	out, err := tensorops.MaxAll(in[0])
	c.Save(in[0], out)
	return one(out, err)
}

func (f *maxAll) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	in, out := c.Saved()[0], c.Saved()[1]
	top, err := tensorops.Expand(out, in.Shape())
	if err != nil {
		return nil, err
	}
	mask, err := tensorops.Map2("max", in, top, func(x, m float64) float64 {
		if x == m || x != x && m != m {
			return 1
		}
		return 0
	})
	if err != nil {
		return nil, err
	}
	n, err := tensorops.Sum(mask, nil, false)
	if err != nil {
		return nil, err
	}
	share, err := binary(tensorops.Div, g[0], n)
	if err != nil {
		return nil, err
	}
	return one(binary(tensorops.Mul, mask, share))
}

// MaxDim returns the largest elements along a dimension and their indices (int64), which have no gradient. It
// corresponds to torch.max(input, dim).
func (v *Variable) MaxDim(dim int, keepdim bool) (values, indices *Variable) {
	out, err := Apply(&maxDim{dim: dim, keepdim: keepdim}, v)
	if err != nil {
		return failed(err), failed(err)
	}
	return out[0], out[1]
}

type maxDim struct {
	dim     int
	keepdim bool
	shape   []int
}

func (f *maxDim) Name() string { return "max" }
func (f *maxDim) fresh()       {}

func (f *maxDim) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	f.shape = in[0].Shape()
	values, indices, err := tensorops.Max(in[0], f.dim, f.keepdim)
	if err != nil {
		return nil, err
	}
	c.Save(indices)
	c.MarkNonDifferentiable(1)
	c.KeepUndefined()
	return tensors{values, indices}, nil
}

func (f *maxDim) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if g[0] == nil {
		return tensors{nil}, nil
	}
	return one(tensorops.Scatter(f.shape, f.dim, c.Saved()[0], g[0]))
}

// ArgMax returns the index of the largest element along a dimension, as int64. It corresponds to torch.argmax.
func (v *Variable) ArgMax(dim int) *Variable {
	_, indices := v.Detach().MaxDim(dim, false)
	return indices
}
