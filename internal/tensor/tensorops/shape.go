// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"slices"

	"github.com/cohort-dist/cohort/tensor"
)

// Cat joins tensors of one type along a dimension. It corresponds to torch.cat for equal types.
func Cat(ts []*tensor.Tensor, dim int) (*tensor.Tensor, error) {
	const op = "cat"
	if len(ts) == 0 {
		return nil, bad(op, "expected a non-empty list of Tensors")
	}
	first, dt := ts[0], ts[0].DType()
	for i, t := range ts {
		if t.Dims() == 0 {
			return nil, bad(op, "zero-dimensional tensor (at position %d) cannot be concatenated", i)
		}
		if NothingToCat(first) {
			first = t
		}
		dt = PromoteTypes(dt, t.DType())
	}
	d, err := Axis(op, dim, first.Dims())
	if err != nil {
		return nil, err
	}
	shape := first.Shape()
	shape[d] = 0
	for i, t := range ts {
		if NothingToCat(t) {
			continue
		}
		if t.Dims() != len(shape) {
			return nil, bad(op, "Tensors must have same number of dimensions: got %d and %d", len(shape), t.Dims())
		}
		for j := range shape {
			if j != d && t.Dim(j) != shape[j] {
				return nil,
					bad(op,
						"Sizes of tensors must match except in dimension %d. Expected size %d but got size %d for tensor number %d "+
							"in the list.", d, shape[j], t.Dim(j), i)
			}
		}
		shape[d] += t.Dim(d)
	}
	out, err := tensor.New(dt, shape...)
	if err != nil {
		return nil, err
	}
	at := 0
	for _, t := range ts {
		if NothingToCat(t) {
			continue
		}
		if t, err = Convert(t, dt); err != nil {
			return nil, err
		}
		part, err := out.Narrow(d, at, t.Dim(d))
		if err != nil {
			return nil, err
		}
		if err := part.CopyFrom(t); err != nil {
			return nil, err
		}
		at += t.Dim(d)
	}
	return out, nil
}

// NothingToCat reports whether [Cat] leaves a tensor out, whatever the shape of the others: PyTorch does so with empty lists.
func NothingToCat(t *tensor.Tensor) bool { return t.Dims() == 1 && t.Dim(0) == 0 }

// Expand repeats a tensor to a shape that it broadcasts to: a view.
func Expand(t *tensor.Tensor, shape []int) (*tensor.Tensor, error) { return t.Expand(shape...) }

// Unreduce puts dimensions of size 1 back where a reduction over dims removed them, and repeats them to shape: a view.
func Unreduce(t *tensor.Tensor, shape, dims []int) (*tensor.Tensor, error) {
	r, err := newReduction("expand", shape, dims, false)
	if err != nil {
		return nil, err
	}
	if t, err = t.Reshape(r.kept...); err != nil {
		return nil, err
	}
	return t.Expand(shape...)
}

// Reduced is the number of elements that a reduction over dims combines into one.
func Reduced(shape, dims []int) (int, error) {
	r, err := newReduction("reduce", shape, dims, false)
	if err != nil {
		return 0, err
	}
	return r.counts, nil
}

// Pad returns zeros of the given shape with t put where the view that at makes of them lies.
func Pad(t *tensor.Tensor, shape []int, at func(*tensor.Tensor) (*tensor.Tensor, error)) (*tensor.Tensor, error) {
	out, err := tensor.New(t.DType(), shape...)
	if err != nil {
		return nil, err
	}
	place, err := at(out)
	if err != nil {
		return nil, err
	}
	return out, place.CopyFrom(t)
}

// Permute reorders dimensions: a view. It corresponds to torch.permute.
func Permute(t *tensor.Tensor, dims []int) (*tensor.Tensor, error) {
	const op = "permute"
	if len(dims) != t.Dims() {
		return nil,
			bad(op,
				"number of dimensions in the tensor input does not match the length of the desired ordering of dimensions i.e. "+
					"input.dim() = %d is not equal to len(dims) = %d", t.Dims(), len(dims))
	}
	shape, strides := make([]int, len(dims)), make([]int, len(dims))
	have, steps := t.Shape(), t.Strides()
	seen := make([]bool, len(dims))
	for i, dim := range dims {
		d, err := Axis(op, dim, len(dims))
		if err != nil {
			return nil, err
		}
		if seen[d] {
			return nil, bad(op, "duplicate dims are not allowed.")
		}
		seen[d] = true
		shape[i], strides[i] = have[d], steps[d]
	}
	return tensor.FromStorage(t.Storage(), t.DType(), shape, strides, t.Offset())
}

// Inverse is the permutation that undoes another one of n dimensions.
func Inverse(dims []int) []int {
	out := slices.Clone(dims)
	for i, d := range dims {
		if d < 0 {
			d += len(dims)
		}
		out[d] = i
	}
	return out
}

// AddInto adds src to dst, which is dense, of the same shape and floating type.
func AddInto(dst, src *tensor.Tensor) error {
	const op = "add"
	if dst.DType() != src.DType() || !dst.SameShape(src) {
		return bad(op, "%v%v to %v%v in place", src.DType(), src.Shape(), dst.DType(), dst.Shape())
	}
	sum, err := inPlaceSum(dst, src)
	if err != nil || sum == nil {
		return err
	}
	return dst.CopyFrom(sum)
}
