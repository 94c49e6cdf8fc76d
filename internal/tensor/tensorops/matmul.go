// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"slices"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
	"github.com/cohort-dist/cohort/tensor"
)

// MatMul multiplies matrices, batches of matrices whose leading dimensions broadcast, and vectors. It corresponds to
// torch.matmul.
func MatMul(a, b *tensor.Tensor) (*tensor.Tensor, error) { return MatMulInto(nil, a, b) }

// MatMulInto is [MatMul] with a place for the result, which overlaps neither operand. The result is room itself where that is dense
// and has its shape and floating type; else, or when room is nil, a new tensor.
func MatMulInto(room, a, b *tensor.Tensor) (*tensor.Tensor, error) {
	const op = "matmul"
	if a.DType() != b.DType() {
		return nil, bad(op, "expected m1 and m2 to have the same dtype, but got: %v != %v", a.DType(), b.DType())
	}
	if a.Dims() == 0 || b.Dims() == 0 {
		return nil, bad(op, "both arguments to matmul need to be at least 1D, but they are %dD and %dD", a.Dims(), b.Dims())
	}
	if !Computes(a.DType()) || a.DType() == tensor.Bool {
		return nil, unsupported(op, a.DType(), notBool)
	}
	var err error
	left, right := a.Dims() == 1, b.Dims() == 1
	if left {
		if a, err = a.View(1, a.Dim(0)); err != nil {
			if a, err = a.Reshape(1, a.Dim(0)); err != nil {
				return nil, err
			}
		}
	}
	if right {
		if b, err = b.Reshape(b.Dim(0), 1); err != nil {
			return nil, err
		}
	}
	m, k, n := a.Dim(-2), a.Dim(-1), b.Dim(-1)
	if b.Dim(-2) != k {
		return nil, bad(op, "mat1 and mat2 shapes cannot be multiplied (%v and %v)", a.Shape(), b.Shape())
	}
	batch, err := BroadcastShape(op, a.Shape()[:a.Dims()-2], b.Shape()[:b.Dims()-2])
	if err != nil {
		return nil, err
	}
	full := append(slices.Clone(batch), m, n)
	if elements(full) > maxElements {
		return nil, bad(op, "the result has shape %v: limit %d elements", full, maxElements)
	}
	var out *tensor.Tensor
	switch ComputeType(a.DType()) {
	case tensor.Float32:
		out, err = multiplyFloats[float32](room, a, b, batch, full)
	case tensor.Float64:
		out, err = multiplyFloats[float64](room, a, b, batch, full)
	case tensor.Complex128:
		out, err = multiplyPlain[complex128](a, b, batch, full)
	default:
		out, err = multiplyPlain[int64](a, b, batch, full)
	}
	if err != nil || !left && !right {
		return out, err
	}
	shape := batch
	if !left {
		shape = append(shape, m)
	}
	if !right {
		shape = append(shape, n)
	}
	return out.View(shape...)
}

// matrices is a batch of matrices in memory.
type matrices[T blas.Float] struct {
	first   blas.Matrix[T]
	strides []int // of the batch dimensions, broadcast
}

func newMatrices[T blas.Float](t *tensor.Tensor, batch []int) (*matrices[T], error) {
	if t.DType() != floatType[T]() { // halves
		data, err := floats[T]("matmul", t)
		if err != nil {
			return nil, err
		}
		if t, err = finishFloats("matmul", data, t.Shape(), floatType[T]()); err != nil {
			return nil, err
		}
	}
	data, strides, err := rawFloats[T](t)
	if err != nil {
		return nil, err
	}
	dims := t.Dims()
	mats := &matrices[T]{strides: make([]int, len(batch))}
	mats.first = blas.Matrix[T]{Data: data, Rows: t.Dim(-2), Cols: t.Dim(-1), RowStride: strides[dims-2], ColStride: strides[dims-1]}
	for i := range dims - 2 {
		if t.Dim(i) != 1 {
			mats.strides[len(batch)-(dims-2)+i] = strides[i]
		}
	}
	return mats, nil
}

func floatType[T blas.Float]() tensor.DType {
	var zero T
	if _, ok := any(zero).(float64); ok {
		return tensor.Float64
	}
	return tensor.Float32
}

func rawFloats[T blas.Float](t *tensor.Tensor) (data []T, strides []int, err error) {
	switch p := any(&data).(type) {
	case *[]float32:
		*p, strides, err = raw[float32](t)
	case *[]float64:
		*p, strides, err = raw[float64](t)
	}
	return data, strides, err
}

func (m *matrices[T]) at(index []int) blas.Matrix[T] {
	from := 0
	for d, i := range index {
		from += i * m.strides[d]
	}
	mat := m.first
	mat.Data = mat.Data[min(from, len(mat.Data)):]
	return mat
}

func multiplyFloats[T blas.Float](room, a, b *tensor.Tensor, batch, full []int) (*tensor.Tensor, error) {
	x, err := newMatrices[T](a, batch)
	if err != nil {
		return nil, err
	}
	y, err := newMatrices[T](b, batch)
	if err != nil {
		return nil, err
	}
	out, placed := place[T](room, full, a.DType())
	m, n := x.first.Rows, y.first.Cols
	// A batch over one matrix on the right is one product of a taller matrix.
	if len(batch) > 0 && b.Dims() == 2 && a.IsContiguous() && elements(full) > 0 {
		x.first.Rows, x.first.RowStride = elements(batch)*m, x.first.Cols
		blas.Mul(blas.Dense(out, elements(batch)*m, n), x.first, y.first, false)
		return placed(out)
	}
	index := make([]int, len(batch))
	for at := 0; at < len(out); at += m * n {
		blas.Mul(blas.Dense(out[at:][:m*n], m, n), x.at(index), y.at(index), false)
		advance(index, batch)
	}
	return placed(out)
}

// place returns the memory for a result and what makes a tensor of it: room where that fits, else new memory.
func place[T blas.Float](room *tensor.Tensor, shape []int, dt tensor.DType) ([]T, func([]T) (*tensor.Tensor, error)) {
	if room != nil && room.DType() == dt && dt == floatType[T]() && slices.Equal(room.Shape(), shape) {
		if data, err := tensor.Data[T](room); err == nil {
			return data, func([]T) (*tensor.Tensor, error) { return room, nil }
		}
	}
	return make([]T, elements(shape)), func(out []T) (*tensor.Tensor, error) { return finishFloats("matmul", out, shape, dt) }
}

// advance moves an index to the next element in row-major order.
func advance(index, shape []int) {
	for d := len(index) - 1; d >= 0; d-- {
		index[d]++
		if index[d] < shape[d] {
			return
		}
		index[d] = 0
	}
}

// multiplyPlain is the loop for integers and complex numbers.
func multiplyPlain[T number](a, b *tensor.Tensor, batch, full []int) (*tensor.Tensor, error) {
	load := func(t *tensor.Tensor) ([]T, error) {
		shape := append(slices.Clone(batch), t.Dim(-2), t.Dim(-1))
		if elements(shape) > maxElements {
			return nil, bad("matmul", "an operand broadcasts to %v: limit %d elements", shape, maxElements)
		}
		t, err := t.Expand(shape...)
		if err != nil {
			return nil, err
		}
		return numbers[T]("matmul", t)
	}
	x, err := load(a)
	if err != nil {
		return nil, err
	}
	y, err := load(b)
	if err != nil {
		return nil, err
	}
	m, k, n := a.Dim(-2), a.Dim(-1), b.Dim(-1)
	out := make([]T, elements(full))
	for at := range elements(batch) {
		for i := range m {
			row := out[(at*m+i)*n:][:n]
			for l := range k {
				v := x[(at*m+i)*k+l]
				for j, w := range y[(at*k+l)*n:][:n] {
					row[j] += v * w
				}
			}
		}
	}
	return finish("matmul", out, full, a.DType())
}
