// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package sparseops computes with sparse tensors in coordinate form. An index may occur more than once in a tensor; its element is the
// sum of all values there. Results are coalesced (every index once, in order) unless the comment of a function says otherwise.
// No function changes its operands, and results may share memory with them. Values are combined by the same code as dense
// ones, so types promote and round as there.
package sparseops

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

func bad(op, format string, args ...any) error {
	return cohort.Newf("sparse: "+op, cohort.InvalidArgument, format, args...)
}

func cannotAdd(op string, dt tensor.DType) error {
	return cohort.Newf("sparse: "+op, cohort.NotSupported, "values of %v cannot be added", dt)
}

// SparseDims returns the number of dimensions that have indices; the others belong to the values.
func SparseDims(s *tensor.Sparse) int { return s.Indices.Dim(0) }

// Empty returns a tensor of zeros.
func Empty(dt tensor.DType, shape []int, sparseDims int) (*tensor.Sparse, error) {
	indices, err := tensor.New(tensor.Int64, sparseDims, 0)
	if err != nil {
		return nil, err
	}
	values, err := tensor.New(dt, append([]int{0}, shape[sparseDims:]...)...)
	if err != nil {
		return nil, err
	}
	return &tensor.Sparse{Shape: slices.Clone(shape), Indices: indices, Values: values}, nil
}

// table is a checked sparse tensor as one number per index and one row of bytes per value.
type table struct {
	keys   []int64 // the place of an index in the sparse dimensions
	order  []int   // the places of keys from small to large, equal ones as they came
	width  int     // bytes of a row
	values []byte
	dt     tensor.DType
}

// read checks a tensor and numbers its indices.
func read(op string, s *tensor.Sparse) (*table, error) {
	if s == nil {
		return nil, bad(op, "no tensor")
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	dims := SparseDims(s)
	rows := uint64(1)
	for _, n := range s.Shape[:dims] {
		high, low := bits.Mul64(rows, uint64(n)) //nolint:gosec // checked: sizes are not negative
		if high != 0 || low > 1<<62 {
			return nil, bad(op, "a tensor of shape %v has too many elements", s.Shape)
		}
		rows = low
	}
	index, err := s.Indices.Contiguous()
	if err != nil {
		return nil, err
	}
	at, err := tensor.Data[int64](index)
	if err != nil {
		return nil, err
	}
	values, err := s.Values.Contiguous()
	if err != nil {
		return nil, err
	}
	n := s.Values.Dim(0)
	t := &table{keys: make([]int64, n), order: make([]int, n), dt: s.Values.DType()}
	if t.values, err = values.Bytes(); err != nil {
		return nil, err
	}
	if n > 0 {
		t.width = len(t.values) / n
	}
	for i := range n {
		key := int64(0)
		for d := range dims {
			key = key*int64(s.Shape[d]) + at[d*n+i]
		}
		t.keys[i], t.order[i] = key, i
	}
	if !slices.IsSorted(t.keys) {
		slices.SortStableFunc(t.order, func(a, b int) int { return cmp.Compare(t.keys[a], t.keys[b]) })
	}
	return t, nil
}

func (t *table) row(i int) []byte { return t.values[i*t.width:][:t.width] }

// coalesced reports whether every index occurs once and they are in order.
func (t *table) coalesced() bool {
	for i := 1; i < len(t.keys); i++ {
		if t.keys[i-1] >= t.keys[i] {
			return false
		}
	}
	return true
}

// indices are those of numbers of places.
func indices(keys []int64, shape []int) (*tensor.Tensor, error) {
	n := len(keys)
	out := make([]int64, len(shape)*n)
	for i, key := range keys {
		for d, size := range slices.Backward(shape) {
			out[d*n+i] = key % int64(size)
			key /= int64(size)
		}
	}
	return tensor.From(out, len(shape), n)
}

// Coalesce returns the tensor with every index once, in order: itself when it is so already. It corresponds to
// Tensor.coalesce.
func Coalesce(s *tensor.Sparse) (*tensor.Sparse, error) {
	t, err := read("coalesce", s)
	if err != nil {
		return nil, err
	}
	if t.coalesced() {
		return s, nil
	}
	return t.merge(s)
}

// merge adds up the values of equal indices, in the order in which they came.
func (t *table) merge(s *tensor.Sparse) (*tensor.Sparse, error) {
	if !reduce.Carries(t.dt) {
		return nil, cannotAdd("coalesce", t.dt)
	}
	var keys []int64
	var out []byte
	for n, i := range t.order {
		if n > 0 && t.keys[i] == keys[len(keys)-1] {
			reduce.Into(out[len(out)-t.width:], t.row(i), t.dt, reduce.Sum)
			continue
		}
		keys, out = append(keys, t.keys[i]), append(out, t.row(i)...)
	}
	return build(keys, out, t.dt, s.Shape, SparseDims(s))
}

// build makes a tensor of places and the bytes of their values.
func build(keys []int64, rows []byte, dt tensor.DType, shape []int, sparseDims int) (*tensor.Sparse, error) {
	index, err := indices(keys, shape[:sparseDims])
	if err != nil {
		return nil, err
	}
	values, err := tensor.New(dt, append([]int{len(keys)}, shape[sparseDims:]...)...)
	if err != nil {
		return nil, err
	}
	to, err := values.Bytes()
	if err != nil {
		return nil, err
	}
	copy(to, rows)
	return &tensor.Sparse{Shape: slices.Clone(shape), Indices: index, Values: values}, nil
}

// Clone returns a copy.
func Clone(s *tensor.Sparse) (*tensor.Sparse, error) {
	return convert(s, (*tensor.Tensor).Clone)
}

// Convert returns the tensor with values of another type. It is coalesced if s is.
func Convert(s *tensor.Sparse, dt tensor.DType) (*tensor.Sparse, error) {
	if s.Values.DType() == dt {
		return s, nil
	}
	return Map(s, func(v *tensor.Tensor) (*tensor.Tensor, error) { return tensorops.Convert(v, dt) })
}

func convert(s *tensor.Sparse, f func(*tensor.Tensor) (*tensor.Tensor, error)) (*tensor.Sparse, error) {
	index, err := f(s.Indices)
	if err != nil {
		return nil, err
	}
	values, err := f(s.Values)
	if err != nil {
		return nil, err
	}
	return &tensor.Sparse{Shape: slices.Clone(s.Shape), Indices: index, Values: values}, nil
}

// Map returns a tensor with the indices of s and values that f computes. f must be linear if s is not coalesced.
func Map(s *tensor.Sparse, f func(*tensor.Tensor) (*tensor.Tensor, error)) (*tensor.Sparse, error) {
	values, err := f(s.Values)
	if err != nil {
		return nil, err
	}
	return &tensor.Sparse{Shape: slices.Clone(s.Shape), Indices: s.Indices, Values: values}, nil
}

// Dense returns the tensor in dense form. It corresponds to Tensor.to_dense.
func Dense(s *tensor.Sparse) (*tensor.Tensor, error) {
	out, err := tensor.New(s.Values.DType(), s.Shape...)
	if err != nil {
		return nil, err
	}
	return out, AddInto(out, s)
}

// AddInto adds s to dst, a contiguous dense tensor of the same shape and type, in place, value by value in the order they have.
func AddInto(dst *tensor.Tensor, s *tensor.Sparse) error {
	if dt := s.Values.DType(); !reduce.Carries(dt) {
		return cannotAdd("add", dt)
	}
	return onto("add", dst, s, func(to, row []byte) { reduce.Into(to, row, dst.DType(), reduce.Sum) })
}

// Put replaces the elements of dst, a contiguous dense tensor of the same shape and type, that s has values for. It is the reverse of
// [Take].
func Put(dst *tensor.Tensor, s *tensor.Sparse) error {
	return onto("put", dst, s, func(to, row []byte) { copy(to, row) })
}

// onto calls f with the memory of each value of s in dst, and with the value.
func onto(op string, dst *tensor.Tensor, s *tensor.Sparse, f func(to, row []byte)) error {
	t, err := read(op, s)
	if err != nil {
		return err
	}
	if dst.DType() != t.dt || !slices.Equal(dst.Shape(), s.Shape) || !dst.IsContiguous() {
		return bad(op, "%v%v to %v%v in place", t.dt, s.Shape, dst.DType(), dst.Shape())
	}
	to, err := dst.Bytes()
	if err != nil {
		return err
	}
	for i, key := range t.keys {
		f(to[int(key)*t.width:][:t.width], t.row(i))
	}
	return nil
}

// Take returns what a dense tensor has at the indices of s; its shape is that of s, or one that is broadcast to it. It corresponds to
// Tensor.sparse_mask, and is coalesced if s is. Nothing of the size of s is made, which may be any.
func Take(t *tensor.Tensor, s *tensor.Sparse) (*tensor.Sparse, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	strides, err := strideOver(t, s.Shape)
	if err != nil {
		return nil, err
	}
	values, err := tensor.New(t.DType(), s.Values.Shape()...)
	if err != nil {
		return nil, err
	}
	index, err := tensor.Copy[int64](s.Indices)
	if err != nil {
		return nil, err
	}
	dims, n := SparseDims(s), s.Values.Dim(0)
	for i := range n {
		offset := t.Offset()
		for d := range dims {
			offset += int(index[d*n+i]) * strides[d]
		}
		from, err := tensor.FromStorage(t.Storage(), t.DType(), s.Shape[dims:], strides[dims:], offset)
		if err != nil {
			return nil, err
		}
		to, err := values.Select(0, i)
		if err != nil {
			return nil, err
		}
		if err := to.CopyFrom(from); err != nil {
			return nil, err
		}
	}
	return &tensor.Sparse{Shape: slices.Clone(s.Shape), Indices: s.Indices, Values: values}, nil
}

// strideOver returns the strides that a tensor has when it is broadcast to a shape.
func strideOver(t *tensor.Tensor, shape []int) ([]int, error) {
	if !broadcasts(t.Shape(), shape) {
		return nil, bad("take", "a dense tensor of shape %v with a sparse one of shape %v", t.Shape(), shape)
	}
	extra := len(shape) - t.Dims()
	strides := append(make([]int, extra), t.Strides()...)
	for d, n := range t.Shape() {
		if n == 1 {
			strides[extra+d] = 0
		}
	}
	return strides, nil
}

// broadcasts reports whether a tensor of one shape can be repeated to another, which may be larger than any dense tensor.
func broadcasts(from, to []int) bool {
	if len(from) > len(to) {
		return false
	}
	for i, n := range from {
		if n != 1 && n != to[len(to)-len(from)+i] {
			return false
		}
	}
	return true
}
