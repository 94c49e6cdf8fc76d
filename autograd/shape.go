// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// view is a function whose result shares the memory of its input where it can. undo takes a gradient back.
type view struct {
	name  string
	make  func(*tensor.Tensor) (*tensor.Tensor, error)
	undo  func(g *tensor.Tensor, shape []int) (*tensor.Tensor, error)
	shape []int
}

func (f *view) Name() string { return f.name }

func (f *view) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	f.shape = in[0].Shape()
	return one(f.make(in[0]))
}

func (f *view) Backward(_ *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(f.undo(g[0], f.shape))
}

func reshape(g *tensor.Tensor, shape []int) (*tensor.Tensor, error) { return g.Reshape(shape...) }

// Reshape returns the same elements in another shape; one dimension may be -1. It corresponds to torch.reshape.
func (v *Variable) Reshape(shape ...int) *Variable {
	return apply(&view{
		name: "reshape", make: func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Reshape(shape...) },
		undo: reshape,
	}, v)
}

// Transpose exchanges two dimensions. It corresponds to torch.transpose.
func (v *Variable) Transpose(dim0, dim1 int) *Variable {
	swap := func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Transpose(dim0, dim1) }
	return apply(&view{name: "transpose", make: swap, undo: func(g *tensor.Tensor, _ []int) (*tensor.Tensor, error) { return swap(g) }}, v)
}

// Permute reorders all dimensions. It corresponds to torch.permute.
func (v *Variable) Permute(dims ...int) *Variable {
	return apply(&view{
		name: "permute",
		make: func(t *tensor.Tensor) (*tensor.Tensor, error) { return tensorops.Permute(t, dims) },
		undo: func(g *tensor.Tensor, _ []int) (*tensor.Tensor, error) {
			return tensorops.Permute(g, tensorops.Inverse(dims))
		},
	}, v)
}

// part is a view of some elements: the gradient of the others is 0.
func (v *Variable) part(name string, take func(*tensor.Tensor) (*tensor.Tensor, error)) *Variable {
	return apply(&view{name: name, make: take, undo: func(g *tensor.Tensor, shape []int) (*tensor.Tensor, error) {
		return tensorops.Pad(g, shape, take)
	}}, v)
}

// Select returns the slice at an index of a dimension, with that dimension gone. It corresponds to Tensor.select and to
// t[i].
func (v *Variable) Select(dim, index int) *Variable {
	return v.part("select", func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Select(dim, index) })
}

// Slice returns every step-th element of a dimension in [start, end). It corresponds to t[start:end:step].
func (v *Variable) Slice(dim, start, end, step int) *Variable {
	return v.part("slice", func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Slice(dim, start, end, step) })
}

// Expand repeats dimensions of size 1. It corresponds to Tensor.expand.
func (v *Variable) Expand(shape ...int) *Variable {
	return apply(&view{
		name: "expand",
		make: func(t *tensor.Tensor) (*tensor.Tensor, error) { return t.Expand(shape...) },
		undo: tensorops.SumTo,
	}, v)
}

// Cat joins variables along a dimension. It corresponds to torch.cat.
func Cat(dim int, vs ...*Variable) *Variable { return apply(&cat{dim: dim}, vs...) }

type cat struct {
	dim   int
	sizes []int // of the inputs, or leftOut
}

const leftOut = -1

func (f *cat) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	out, err := tensorops.Cat(in, f.dim)
	if err != nil {
		return nil, err
	}
	for _, t := range in {
		if tensorops.NothingToCat(t) {
			f.sizes = append(f.sizes, leftOut)
			continue
		}
		f.sizes = append(f.sizes, t.Dim(f.dim))
	}
	return tensors{out}, nil
}

func (f *cat) Backward(_ *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	var out tensors
	at := 0
	for _, n := range f.sizes {
		if n == leftOut {
			part, err := tensor.New(g[0].DType(), 0)
			if err != nil {
				return nil, err
			}
			out = append(out, part)
			continue
		}
		part, err := g[0].Narrow(f.dim, at, n)
		if err != nil {
			return nil, err
		}
		out = append(out, part)
		at += n
	}
	return out, nil
}

// IndexSelect returns the slices of dimension 0 that ids (int64 or int32, any shape) name; negative ones count from the end. It
// corresponds to t[ids].
func (v *Variable) IndexSelect(ids *tensor.Tensor) *Variable {
	if v.err != nil {
		return v
	}
	shape := v.Shape()
	if len(shape) > 0 && ids != nil {
		var err error
		if ids, err = tensorops.WrapIndices(ids, shape[0]); err != nil {
			return failed(withOp("autograd: index select", err))
		}
	}
	if len(shape) == 0 || len(shape) == 2 {
		return Embedding(v, Constant(ids), -1)
	}
	out := Embedding(v.Reshape(shape[0], product(shape[1:])), Constant(ids), -1)
	if out.err != nil {
		return out
	}
	return out.Reshape(append(ids.Shape(), shape[1:]...)...)
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
