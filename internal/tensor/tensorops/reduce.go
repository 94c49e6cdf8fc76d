// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"math"
	"slices"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
	"github.com/cohort-dist/cohort/tensor"
)

// reduction describes where the elements of a tensor go when some of its dimensions are reduced.
type reduction struct {
	shape  []int // of the result
	kept   []int // of the result with the reduced dimensions as 1
	steps  []int // by input dimension: the distance in the result, 0 where reduced
	counts int   // elements that meet in one
}

func newReduction(op string, shape, dims []int, keepdim bool) (*reduction, error) {
	reduced := make([]bool, max(len(shape), 1))
	for _, dim := range dims {
		d, err := Axis(op, dim, len(shape))
		if err != nil {
			return nil, err
		}
		if reduced[d] {
			return nil, bad(op, "dim %d appears multiple times in the list of dims", d)
		}
		reduced[d] = true
	}
	r := &reduction{steps: make([]int, len(shape)), counts: 1}
	for i, d := range shape {
		if len(dims) == 0 || reduced[i] {
			reduced[i] = true
			r.counts *= d
			r.kept = append(r.kept, 1)
			if keepdim {
				r.shape = append(r.shape, 1)
			}
			continue
		}
		r.kept, r.shape = append(r.kept, d), append(r.shape, d)
	}
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		if !reduced[i] {
			r.steps[i] = step
			step *= shape[i]
		}
	}
	return r, nil
}

// walk calls f for every row along the last dimension: where it begins in the input and where in the result.
func (r *reduction) walk(shape []int, f func(from, to int)) {
	n := elements(shape)
	if n == 0 {
		return
	}
	if len(shape) == 0 {
		f(0, 0)
		return
	}
	last := len(shape) - 1
	index, to := make([]int, last), 0
	for from := 0; from < n; from += shape[last] {
		f(from, to)
		for d := last - 1; d >= 0; d-- {
			index[d]++
			to += r.steps[d]
			if index[d] < shape[d] {
				break
			}
			to -= index[d] * r.steps[d]
			index[d] = 0
		}
	}
}

// alongRow reports whether a row lies along the result rather than being reduced, and its length.
func (r *reduction) alongRow(shape []int) (bool, int) {
	if len(shape) == 0 {
		return false, 1
	}
	last := len(shape) - 1
	return r.steps[last] != 0, shape[last]
}

// Sum adds over dims, or over all dimensions when dims is empty. Integers become int64. It corresponds to torch.sum.
func Sum(t *tensor.Tensor, dims []int, keepdim bool) (*tensor.Tensor, error) {
	if !Computes(t.DType()) {
		return nil, unsupported("sum", t.DType(), anyType)
	}
	switch ComputeType(t.DType()) {
	case tensor.Float32:
		return sum("sum", t, dims, keepdim, t.DType(), singles, false)
	case tensor.Float64:
		return sum("sum", t, dims, keepdim, t.DType(), ownType[float64](), false)
	case tensor.Complex128:
		return sum("sum", t, dims, keepdim, t.DType(), complexes(t.DType()), false)
	default:
		return sum("sum", t, dims, keepdim, tensor.Int64, ownType[int64](), false)
	}
}

// Mean is the arithmetic mean over dims, or over all dimensions when dims is empty. It corresponds to torch.mean.
func Mean(t *tensor.Tensor, dims []int, keepdim bool) (*tensor.Tensor, error) {
	if !Computes(t.DType()) || KindOf(t.DType()) < Real {
		return nil, bad("mean",
			"could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: %v", t.DType())
	}
	switch ComputeType(t.DType()) {
	case tensor.Float32:
		return sum("mean", t, dims, keepdim, t.DType(), singles, true)
	case tensor.Float64:
		return sum("mean", t, dims, keepdim, t.DType(), ownType[float64](), true)
	default:
		return sum("mean", t, dims, keepdim, t.DType(), complexes(t.DType()), true)
	}
}

// accumulation describes how elements of type T are added up in sums of type A.
type accumulation[T, A number] struct {
	wide func(T) A
	// limit, where there is one, returns what to apply to every partial sum of n of the elements, or nil when none can be too large.
	limit func(x []T, n int) func(A) A
}

// singles adds in float64, which loses less than torch's sums of float32, and overflows where those do.
var singles = accumulation[float32, float64]{
	wide: func(v float32) float64 { return float64(v) },
	limit: func(x []float32, n int) func(float64) float64 {
		largest := largest32(x, math.MaxUint32)
		if largest >= infinite { // what is not finite is what it is without any limit
			largest = largest32(x, infinite)
		}
		if fits32(float64(math.Float32frombits(largest)), n) {
			return nil
		}
		return overflow32
	},
}

// infinite is the infinity of float32; what is not a number has more.
const infinite = 0xff << 23

// largest32 returns the bits of the largest magnitude that has fewer than some; magnitudes are ordered as their bits are.
func largest32(x []float32, below uint32) (largest uint32) {
	for _, v := range x {
		if bits := math.Float32bits(v) &^ (1 << 31); bits < below {
			largest = max(largest, bits)
		}
	}
	return largest
}

// fits32 reports whether all sums of n numbers of a magnitude are finite in float32.
func fits32(largest float64, n int) bool { return largest*float64(n) <= math.MaxFloat32 }

// complexes adds in complex128, and for complex64 overflows as singles does.
func complexes(dt tensor.DType) accumulation[complex128, complex128] {
	acc := ownType[complex128]()
	if dt == tensor.Complex64 {
		acc.limit = func(x []complex128, n int) func(complex128) complex128 {
			largest := 0.0
			for _, v := range x {
				for _, part := range [2]float64{math.Abs(real(v)), math.Abs(imag(v))} {
					if part <= math.MaxFloat32 {
						largest = max(largest, part)
					}
				}
			}
			if fits32(largest, n) {
				return nil
			}
			return func(v complex128) complex128 { return complex(overflow32(real(v)), overflow32(imag(v))) }
		}
	}
	return acc
}

func ownType[T number]() accumulation[T, T] {
	return accumulation[T, T]{wide: func(v T) T { return v }}
}

// overflow32 makes a number infinite that float32 has no place for.
func overflow32(v float64) float64 {
	if r := float64(float32(v)); math.IsInf(r, 0) {
		return r
	}
	return v
}

func sum[T, A number](op string, t *tensor.Tensor, dims []int, keepdim bool, dt tensor.DType, acc accumulation[T, A],
	mean bool,
) (*tensor.Tensor, error) {
	x, err := numbers[T](op, t)
	if err != nil {
		return nil, err
	}
	shape := t.Shape()
	r, err := newReduction(op, shape, dims, keepdim)
	if err != nil {
		return nil, err
	}
	out := make([]A, elements(r.shape))
	along, n := r.alongRow(shape)
	var limit func(A) A
	if acc.limit != nil {
		limit = acc.limit(x, r.counts)
	}
	r.walk(shape, func(from, to int) {
		row := x[from:][:n]
		switch {
		case limit != nil:
			for i, v := range row {
				at := to
				if along {
					at += i
				}
				out[at] = limit(out[at] + acc.wide(v))
			}
		case along:
			dst := out[to:][:n]
			for i, v := range row {
				dst[i] += acc.wide(v)
			}
		default:
			var s A
			for _, v := range row {
				s += acc.wide(v)
			}
			out[to] += s
		}
	})
	if mean {
		for i := range out {
			out[i] /= fromFloat[A](float64(r.counts)) // 0/0 is NaN, as in torch
		}
	}
	return finish(op, out, r.shape, dt)
}

// Max returns the largest element along a dimension and its index; NaN is larger than everything, and of equal ones the
// first counts. It corresponds to torch.max(input, dim).
func Max(t *tensor.Tensor, dim int, keepdim bool) (values, indices *tensor.Tensor, err error) {
	const op = "max"
	if !Computes(t.DType()) || KindOf(t.DType()) == Complex {
		return nil, nil, unsupported(op, t.DType(), notComplex)
	}
	shape := t.Shape()
	d, err := Axis(op, dim, len(shape))
	if err != nil {
		return nil, nil, err
	}
	if len(shape) > 0 && shape[d] == 0 {
		return nil, nil, bad(op, "Expected reduction dim %d to have non-zero size.", d)
	}
	switch ComputeType(t.DType()) {
	case tensor.Float32:
		return maxOf[float32](t, shape, d, keepdim)
	case tensor.Float64:
		return maxOf[float64](t, shape, d, keepdim)
	default:
		return maxOf[int64](t, shape, d, keepdim)
	}
}

func maxOf[T float32 | float64 | int64](t *tensor.Tensor, shape []int, d int, keepdim bool) (values, indices *tensor.Tensor, err error) {
	x, err := numbers[T]("max", t)
	if err != nil {
		return nil, nil, err
	}
	outer, n, inner := split(shape, d)
	best, at := make([]T, outer*inner), make([]int64, outer*inner)
	for o := range outer {
		for i := range inner {
			base, k := o*n*inner+i, 0
			m := x[base]
			for j := 1; j < n && !isNaN(m); j++ {
				if v := x[base+j*inner]; v > m || isNaN(v) {
					m, k = v, j
				}
			}
			best[o*inner+i], at[o*inner+i] = m, int64(k)
		}
	}
	out := slices.Clone(shape)
	switch {
	case len(shape) == 0:
	case keepdim:
		out[d] = 1
	default:
		out = slices.Delete(out, d, d+1)
	}
	if values, err = finish("max", best, out, t.DType()); err != nil {
		return nil, nil, err
	}
	indices, err = wrap(at, out)
	return values, indices, err
}

// split sees a shape as three dimensions with d in the middle.
func split(shape []int, d int) (outer, n, inner int) {
	if len(shape) == 0 {
		return 1, 1, 1
	}
	return elements(shape[:d]), shape[d], elements(shape[d+1:])
}

// MaxAll is the largest element of all. It corresponds to torch.max(input).
func MaxAll(t *tensor.Tensor) (*tensor.Tensor, error) {
	if t.Numel() == 0 {
		return nil,
			bad("max", "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument.")
	}
	flat, err := t.Reshape(-1)
	if err != nil {
		return nil, err
	}
	values, _, err := Max(flat, 0, false)
	return values, err
}

// Scatter returns zeros of the given shape with values put at the indices along dimension d that [Max] returned.
func Scatter(shape []int, dim int, indices, values *tensor.Tensor) (*tensor.Tensor, error) {
	d, err := Axis("scatter", dim, len(shape))
	if err != nil {
		return nil, err
	}
	if ComputeType(values.DType()) == tensor.Float64 {
		return scatter[float64](shape, d, indices, values)
	}
	return scatter[float32](shape, d, indices, values)
}

func scatter[T blas.Float](shape []int, d int, indices, values *tensor.Tensor) (*tensor.Tensor, error) {
	at, err := dense[int64](indices)
	if err != nil {
		return nil, err
	}
	v, err := floats[T]("scatter", values)
	if err != nil {
		return nil, err
	}
	outer, n, inner := split(shape, d)
	out := make([]T, outer*n*inner)
	for o := range outer {
		for i := range inner {
			k := o*inner + i
			out[(o*n+int(at[k]))*inner+i] = v[k]
		}
	}
	return finishFloats("scatter", out, shape, values.DType())
}
