// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/cohort-dist/cohort"
)

// Views share storage with their source; none of them copies. They keep the requires-grad bit off: only a leaf carries it.

func (t *Tensor) view(shape, strides []int, offset int) *Tensor {
	return &Tensor{storage: t.storage, dtype: t.dtype, shape: shape, strides: strides, offset: offset, numel: product(shape)}
}

func (t *Tensor) axis(op string, dim int) (int, error) {
	d := dim
	if d < 0 {
		d += len(t.shape)
	}
	if d < 0 || d >= len(t.shape) {
		return 0, cohort.Newf(op, cohort.InvalidArgument, "dimension %d of a tensor with %d dimensions", dim, len(t.shape))
	}
	return d, nil
}

// Narrow returns length elements of dimension dim from start on. It corresponds to Tensor.narrow.
func (t *Tensor) Narrow(dim, start, length int) (*Tensor, error) {
	d, err := t.axis("tensor: narrow", dim)
	if err != nil {
		return nil, err
	}
	if start < 0 || length < 0 || start > t.shape[d] || length > t.shape[d]-start {
		return nil, cohort.Newf("tensor: narrow", cohort.InvalidArgument,
			"start %d and length %d lie outside dimension %d of size %d", start, length, dim, t.shape[d])
	}
	shape := slices.Clone(t.shape)
	shape[d] = length
	offset := t.offset
	if product(shape) > 0 { // an empty view keeps an offset inside the storage
		offset += start * t.strides[d]
	}
	return t.view(shape, slices.Clone(t.strides), offset), nil
}

// Slice returns every step-th element of dimension dim in [start, end). As in Python a negative place counts from the end, and places
// beyond an end mean that end. It corresponds to t[start:end:step].
func (t *Tensor) Slice(dim, start, end, step int) (*Tensor, error) {
	d, err := t.axis("tensor: slice", dim)
	if err != nil {
		return nil, err
	}
	if step < 1 {
		return nil, cohort.Newf("tensor: slice", cohort.InvalidArgument, "[%d:%d:%d]: the step must be positive", start, end, step)
	}
	start, end = place(start, t.shape[d]), place(end, t.shape[d])
	end = max(start, end)
	v, err := t.Narrow(d, start, end-start)
	if err != nil {
		return nil, err
	}
	n := 0
	if end > start {
		n = (end-start-1)/step + 1
	}
	v.shape[d], v.numel = n, 0
	v.numel = product(v.shape)
	if n > 1 {
		v.strides[d] *= step // within the old extent, so it cannot overflow
	}
	return v, nil
}

// place is where a place of a slice lies in a dimension of some size.
func place(at, size int) int {
	if at < 0 {
		at += size
	}
	return min(max(at, 0), size)
}

// Select returns the slice at index of dimension dim, with that dimension gone. It corresponds to Tensor.select.
func (t *Tensor) Select(dim, index int) (*Tensor, error) {
	d, err := t.axis("tensor: select", dim)
	if err != nil {
		return nil, err
	}
	i := index
	if i < 0 {
		i += t.shape[d]
	}
	if i < 0 || i >= t.shape[d] {
		return nil, cohort.Newf("tensor: select", cohort.InvalidArgument, "index %d of dimension %d of size %d", index, dim, t.shape[d])
	}
	v, err := t.Narrow(d, i, 1)
	if err != nil {
		return nil, err
	}
	v.shape, v.strides = slices.Delete(v.shape, d, d+1), slices.Delete(v.strides, d, d+1)
	return v, nil
}

// Transpose exchanges two dimensions. It corresponds to Tensor.transpose, and as there a tensor without dimensions has one to exchange
// with itself.
func (t *Tensor) Transpose(dim0, dim1 int) (*Tensor, error) {
	if len(t.shape) == 0 && min(dim0, dim1) >= -1 && max(dim0, dim1) <= 0 {
		return t.view(nil, nil, t.offset), nil
	}
	a, err := t.axis("tensor: transpose", dim0)
	if err != nil {
		return nil, err
	}
	b, err := t.axis("tensor: transpose", dim1)
	if err != nil {
		return nil, err
	}
	v := t.view(slices.Clone(t.shape), slices.Clone(t.strides), t.offset)
	v.shape[a], v.shape[b] = v.shape[b], v.shape[a]
	v.strides[a], v.strides[b] = v.strides[b], v.strides[a]
	return v, nil
}

// Expand repeats dimensions of size 1 without a copy. It corresponds to Tensor.expand; -1 keeps a dimension.
func (t *Tensor) Expand(shape ...int) (*Tensor, error) {
	const op = "tensor: expand"
	lead := len(shape) - len(t.shape)
	if lead < 0 {
		return nil, cohort.Newf(op, cohort.InvalidArgument, "%v has fewer dimensions than %v", shape, t.shape)
	}
	shape = slices.Clone(shape)
	strides := make([]int, len(shape))
	for i := range shape {
		if i < lead {
			continue
		}
		d := t.shape[i-lead]
		switch {
		case shape[i] == -1 || shape[i] == d:
			shape[i], strides[i] = d, t.strides[i-lead]
		case d != 1:
			return nil, cohort.Newf(op, cohort.InvalidArgument, "%v cannot be expanded to %v: dimension %d has size %d", t.shape,
				shape, i, d)
		}
	}
	return FromStorage(t.storage, t.dtype, shape, strides, t.offset)
}

// inferShape replaces one -1 and checks that shape has the tensor's number of elements.
func (t *Tensor) inferShape(op string, shape []int) ([]int, error) {
	shape = slices.Clone(shape)
	hole, known := -1, 1
	for i, d := range shape {
		switch {
		case d == -1 && hole < 0:
			hole = i
		case d < 0:
			return nil, cohort.Newf(op, cohort.InvalidArgument, "shape %v: at most one dimension may be -1", shape)
		case d > 0 && known > maxBytes/d:
			return nil, cohort.Newf(op, cohort.TooLarge, "shape %v overflows", shape)
		default:
			known *= d
		}
	}
	if hole >= 0 {
		if known == 0 || t.numel%known != 0 {
			return nil, cohort.Newf(op, cohort.InvalidArgument, "shape %v does not divide %d elements", shape, t.numel)
		}
		shape[hole] = t.numel / known
		known *= shape[hole]
	}
	if known != t.numel || len(shape) > MaxDims {
		return nil, cohort.Newf(op, cohort.InvalidArgument, "shape %v does not fit %d elements", shape, t.numel)
	}
	return shape, nil
}

// View returns the same elements in another shape without a copy, or an error where the strides do not allow it. One
// dimension may be -1. It corresponds to Tensor.view.
func (t *Tensor) View(shape ...int) (*Tensor, error) {
	const op = "tensor: view"
	shape, err := t.inferShape(op, shape)
	if err != nil {
		return nil, err
	}
	strides, ok := viewStrides(t.shape, t.strides, shape)
	if !ok {
		return nil, cohort.Newf(op, cohort.InvalidArgument,
			"shape %v with strides %v cannot be seen as %v without a copy: use Reshape", t.shape, t.strides, shape)
	}
	return t.view(shape, strides, t.offset), nil
}

// Reshape is [Tensor.View] where that is possible and a copy where it is not. It corresponds to Tensor.reshape.
func (t *Tensor) Reshape(shape ...int) (*Tensor, error) {
	shape, err := t.inferShape("tensor: reshape", shape)
	if err != nil {
		return nil, err
	}
	if strides, ok := viewStrides(t.shape, t.strides, shape); ok {
		return t.view(shape, strides, t.offset), nil
	}
	c, err := t.Contiguous()
	if err != nil {
		return nil, err
	}
	return c.view(shape, rowMajor(shape), c.offset), nil
}

// viewStrides finds the strides of a reshaped view: runs of old dimensions that lie one behind the other in memory may be
// split anew, other borders must survive.
func viewStrides(old, oldStrides, shape []int) ([]int, bool) {
	if product(old) == 0 {
		return rowMajor(shape), true
	}
	strides := make([]int, len(shape))
	j := len(shape) - 1
	run, step := 1, 0 // the current run's elements and its innermost stride
	if len(old) > 0 {
		step = oldStrides[len(old)-1]
	}
	for i, o := range slices.Backward(old) {
		run *= o
		if i > 0 && (old[i-1] == 1 || oldStrides[i-1] == run*step) {
			continue // the next dimension continues this run
		}
		covered := 1
		for j >= 0 && (covered < run || shape[j] == 1) {
			strides[j] = covered * step
			covered *= shape[j]
			j--
		}
		if covered != run {
			return nil, false
		}
		if i > 0 {
			run, step = 1, oldStrides[i-1]
		}
	}
	for ; j >= 0; j-- {
		strides[j] = 1 // only dimensions of size 1 are left
	}
	return strides, true
}
