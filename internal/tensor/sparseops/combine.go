// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sparseops

import (
	"cmp"
	"slices"

	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// join returns a tensor with the indices and values of all, one after the other: their sum, not coalesced.
func join(ss ...*tensor.Sparse) (*tensor.Sparse, error) {
	var index, values []*tensor.Tensor
	for _, s := range ss {
		if err := alike("add", ss[0], s); err != nil {
			return nil, err
		}
		index, values = append(index, s.Indices), append(values, s.Values)
	}
	joined, err := tensorops.Cat(index, 1)
	if err != nil {
		return nil, err
	}
	sum, err := tensorops.Cat(values, 0)
	if err != nil {
		return nil, err
	}
	return &tensor.Sparse{Shape: slices.Clone(ss[0].Shape), Indices: joined, Values: sum}, nil
}

func alike(op string, a, b *tensor.Sparse) error {
	if a == nil || b == nil {
		return bad(op, "no tensor")
	}
	for _, s := range []*tensor.Sparse{a, b} {
		if err := s.Check(); err != nil {
			return err
		}
	}
	switch {
	case !slices.Equal(a.Shape, b.Shape):
		return bad(op, "expected sizes of both to be equal, but %v and %v: sparse tensors are not broadcast", a.Shape, b.Shape)
	case SparseDims(a) != SparseDims(b):
		return bad(op, "a tensor with %d sparse dimensions and one with %d", SparseDims(a), SparseDims(b))
	}
	return nil
}

// same brings the values of two tensors to one type.
func same(op string, a, b *tensor.Sparse) (x, y *tensor.Sparse, err error) {
	if err = alike(op, a, b); err != nil {
		return nil, nil, err
	}
	dt := tensorops.ResultType(tensorops.Of(a.Values), tensorops.Of(b.Values))
	if x, err = Convert(a, dt); err != nil {
		return nil, nil, err
	}
	y, err = Convert(b, dt)
	return x, y, err
}

// Add returns a + b. It is coalesced if both are; otherwise an index may occur as often as in both together. Values are added in
// the order in which PyTorch adds them, from zero on: a negative zero comes out positive, except next to a tensor without indices.
// It corresponds to torch.add.
func Add(a, b *tensor.Sparse) (*tensor.Sparse, error) {
	const op = "add"
	a, b, err := same(op, a, b)
	switch {
	case err != nil:
		return nil, err
	case b.Values.Dim(0) == 0:
		return a, nil
	case a.Values.Dim(0) == 0:
		return b, nil
	}
	x, err := read(op, a)
	if err != nil {
		return nil, err
	}
	y, err := read(op, b)
	if err != nil {
		return nil, err
	}
	if !reduce.Carries(x.dt) {
		return nil, cannotAdd(op, x.dt)
	}
	var keys []int64
	rows := make([]byte, 0, len(x.values)+len(y.values))
	zero := make([]byte, x.width)
	for i, j := 0, 0; i < len(x.keys) || j < len(y.keys); {
		rows = append(rows, zero...)
		row := rows[len(rows)-x.width:]
		var order int
		switch {
		case i == len(x.keys):
			order = 1
		case j == len(y.keys):
			order = -1
		default:
			order = cmp.Compare(x.keys[i], y.keys[j])
		}
		if order <= 0 {
			reduce.Into(row, x.row(i), x.dt, reduce.Sum)
			keys = append(keys, x.keys[i])
			i++
		}
		if order >= 0 {
			reduce.Into(row, y.row(j), x.dt, reduce.Sum)
			if order > 0 {
				keys = append(keys, y.keys[j])
			}
			j++
		}
	}
	return build(keys, rows, x.dt, a.Shape, SparseDims(a))
}

// Total returns the sum of coalesced tensors of one type, added one after the other as [Add] does, but at once.
func Total(ss ...*tensor.Sparse) (*tensor.Sparse, error) {
	var some []*tensor.Sparse
	for _, s := range ss {
		if s.Values.Dim(0) > 0 {
			some = append(some, s)
		}
	}
	if len(some) < 2 {
		return append(some, ss[0])[0], nil
	}
	all, err := join(some...)
	if err != nil {
		return nil, err
	}
	t, err := read("add", all)
	if err != nil {
		return nil, err
	}
	sum, err := t.merge(all)
	if err != nil || !t.dt.Floating() && !t.dt.Complex() {
		return sum, err
	}
	rows, err := sum.Values.Bytes()
	if err != nil {
		return nil, err
	}
	reduce.Into(rows, make([]byte, len(rows)), t.dt, reduce.Sum) // no negative zeros
	return sum, nil
}

// Mul returns a * b, whose indices are those that both have. It corresponds to torch.mul.
func Mul(a, b *tensor.Sparse) (*tensor.Sparse, error) {
	const op = "mul"
	a, b, err := same(op, a, b)
	if err != nil {
		return nil, err
	}
	if a, err = Coalesce(a); err != nil {
		return nil, err
	}
	if b, err = Coalesce(b); err != nil {
		return nil, err
	}
	x, err := read(op, a)
	if err != nil {
		return nil, err
	}
	y, err := read(op, b)
	if err != nil {
		return nil, err
	}
	var keys []int64
	var left, right []byte
	for i, j := 0, 0; i < len(x.keys) && j < len(y.keys); {
		switch p, q := x.keys[i], y.keys[j]; {
		case p < q:
			i++
		case p > q:
			j++
		default:
			keys, left, right = append(keys, p), append(left, x.row(i)...), append(right, y.row(j)...)
			i, j = i+1, j+1
		}
	}
	l, err := build(keys, left, x.dt, a.Shape, SparseDims(a))
	if err != nil {
		return nil, err
	}
	r, err := build(keys, right, y.dt, a.Shape, SparseDims(a))
	if err != nil {
		return nil, err
	}
	return Map(l, func(v *tensor.Tensor) (*tensor.Tensor, error) {
		return tensorops.Binary(tensorops.Mul, tensorops.Of(v), tensorops.Of(r.Values))
	})
}

// MulDense returns s * t for a dense tensor of the same shape, or one that can be expanded to it. It has the indices of s.
func MulDense(s *tensor.Sparse, t *tensor.Tensor) (*tensor.Sparse, error) {
	at, err := Take(t, s)
	if err != nil {
		return nil, err
	}
	return Map(s, func(v *tensor.Tensor) (*tensor.Tensor, error) {
		return tensorops.Binary(tensorops.Mul, tensorops.Of(v), tensorops.Of(at.Values))
	})
}

// Stack joins tensors along a new sparse dimension. It corresponds to torch.stack.
func Stack(dim int, ss ...*tensor.Sparse) (*tensor.Sparse, error) {
	const op = "stack"
	if len(ss) == 0 {
		return nil, bad(op, "expects a non-empty list of tensors")
	}
	dt := ss[0].Values.DType()
	for _, s := range ss {
		if err := alike(op, ss[0], s); err != nil {
			return nil, err
		}
		dt = tensorops.PromoteTypes(dt, s.Values.DType())
	}
	dims := SparseDims(ss[0])
	at, err := tensorops.Axis(op, dim, len(ss[0].Shape)+1)
	if err != nil {
		return nil, err
	}
	if at > dims {
		return nil, bad(op, "dimension %d is behind the %d sparse ones: a stack of dense dimensions is not supported", dim, dims)
	}
	shape := slices.Insert(slices.Clone(ss[0].Shape), at, len(ss))
	parts := make([]*tensor.Sparse, len(ss))
	for i, s := range ss {
		if s, err = Convert(s, dt); err != nil {
			return nil, err
		}
		parts[i] = &tensor.Sparse{Shape: shape, Values: s.Values}
		if parts[i].Indices, err = inserted(s.Indices, at, i); err != nil {
			return nil, err
		}
	}
	all, err := join(parts...)
	if err != nil {
		return nil, err
	}
	return Coalesce(all)
}

// inserted returns indices with one more dimension, in which all are the same.
func inserted(index *tensor.Tensor, dim, is int) (*tensor.Tensor, error) {
	all, err := tensor.Full(tensor.Int64, int64(is), 1, index.Dim(1))
	if err != nil {
		return nil, err
	}
	above, err := index.Narrow(0, 0, dim)
	if err != nil {
		return nil, err
	}
	below, err := index.Narrow(0, dim, index.Dim(0)-dim)
	if err != nil {
		return nil, err
	}
	return tensorops.Cat([]*tensor.Tensor{above, all, below}, 0)
}

// Select returns the part at an index of a sparse dimension, with that dimension gone. It corresponds to Tensor.select.
func Select(s *tensor.Sparse, dim, index int) (*tensor.Sparse, error) {
	const op = "select"
	t, err := read(op, s)
	if err != nil {
		return nil, err
	}
	dims := SparseDims(s)
	at, err := tensorops.Axis(op, dim, len(s.Shape))
	if err != nil {
		return nil, err
	}
	if at >= dims || dims < 2 || index < 0 || index >= s.Shape[at] {
		return nil, bad(op, "index %d of dimension %d of a tensor of shape %v with %d sparse dimensions", index, dim, s.Shape, dims)
	}
	below := int64(1)
	for _, n := range s.Shape[at+1 : dims] {
		below *= int64(n)
	}
	size := int64(s.Shape[at])
	var keys []int64
	var rows []byte
	for _, i := range t.order {
		if key := t.keys[i]; key/below%size == int64(index) {
			keys, rows = append(keys, key/(below*size)*below+key%below), append(rows, t.row(i)...)
		}
	}
	out, err := build(keys, rows, t.dt, slices.Delete(slices.Clone(s.Shape), at, at+1), dims-1)
	if err != nil {
		return nil, err
	}
	return Coalesce(out)
}

// Sum returns the sum of all elements as a dense scalar. It corresponds to torch.sparse.sum.
func Sum(s *tensor.Sparse) (*tensor.Tensor, error) {
	s, err := Coalesce(s)
	if err != nil {
		return nil, err
	}
	return tensorops.Sum(s.Values, nil, false)
}

// Rows returns the matrix of n rows in which row ids[i] is row i of grad, not coalesced. The row skip has no values.
func Rows(grad, ids *tensor.Tensor, n, skip int) (*tensor.Sparse, error) {
	at, err := tensorops.Convert(ids, tensor.Int64)
	if err != nil {
		return nil, err
	}
	list, err := tensor.Copy[int64](at)
	if err != nil {
		return nil, err
	}
	width := grad.Dim(-1)
	values, err := grad.Reshape(len(list), width)
	if err != nil {
		return nil, err
	}
	if slices.Contains(list, int64(skip)) {
		var kept, places []int64
		for i, id := range list {
			if id != int64(skip) {
				kept, places = append(kept, id), append(places, int64(i))
			}
		}
		from, failed := tensor.From(places, len(places))
		if failed != nil {
			return nil, failed
		}
		if values, err = tensorops.Embedding(values, from); err != nil {
			return nil, err
		}
		list = kept
	} else if values, err = values.Clone(); err != nil { // others may have grad too
		return nil, err
	}
	index, err := tensor.From(list, 1, len(list))
	if err != nil {
		return nil, err
	}
	return &tensor.Sparse{Shape: []int{n, width}, Indices: index, Values: values}, nil
}

// SumTo adds up what was broadcast from a shape: dimensions in front of it, and those where it has size 1. The result is dense
// when no sparse dimension is left. Nothing of the size of s is made, which may be any.
func SumTo(s *tensor.Sparse, shape []int) (*tensor.Sparse, *tensor.Tensor, error) {
	const op = "sum"
	if err := s.Check(); err != nil {
		return nil, nil, err
	}
	if !broadcasts(shape, s.Shape) {
		return nil, nil, bad(op, "shape %v to %v", s.Shape, shape)
	}
	dims, n := SparseDims(s), s.Values.Dim(0)
	extra := len(s.Shape) - len(shape)
	if extra >= dims {
		sum, err := tensorops.Sum(s.Values, []int{0}, false)
		if err != nil {
			return nil, nil, err
		}
		sum, err = tensorops.SumTo(sum, shape)
		return nil, sum, err
	}
	index, err := tensor.Copy[int64](s.Indices)
	if err != nil {
		return nil, nil, err
	}
	index = index[extra*n:]
	for d := range dims - extra {
		if shape[d] == 1 {
			clear(index[d*n : (d+1)*n])
		}
	}
	out := &tensor.Sparse{Shape: slices.Clone(shape)}
	if out.Indices, err = tensor.From(index, dims-extra, n); err != nil {
		return nil, nil, err
	}
	if out.Values, err = tensorops.SumTo(s.Values, append([]int{n}, shape[dims-extra:]...)); err != nil {
		return nil, nil, err
	}
	out, err = Coalesce(out)
	return out, nil, err
}
