// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package aten

import (
	"math/cmplx"

	"github.com/cohort-dist/cohort/tensor"
)

// broadcastShape is the common shape of two operands.
func broadcastShape(a, b []int) ([]int, error) {
	n := max(len(a), len(b))
	out := make([]int, n)
	for i := range out {
		x, y := 1, 1
		if j := i - (n - len(a)); j >= 0 {
			x = a[j]
		}
		if j := i - (n - len(b)); j >= 0 {
			y = b[j]
		}
		switch {
		case x == y || y == 1:
			out[i] = x
		case x == 1:
			out[i] = y
		default:
			return nil, badOperand("The size of tensor a (%d) must match the size of tensor b (%d) at non-singleton dimension %d", x, y, i)
		}
	}
	return out, nil
}

// values reads an operand as numbers of one kind, expanded to a shape.
func values[N int64 | float64 | complex128](c *call, o operand, shape []int, from func(any) N) ([]N, error) {
	if err := reserve[N](c, shape); err != nil {
		return nil, err
	}
	n := 1
	for _, d := range shape {
		n *= d
	}
	out := make([]N, n)
	if o.t == nil {
		v := from(o.number)
		for i := range out {
			out[i] = v
		}
		return out, nil
	}
	t := o.t
	if t.Dims() < len(shape) {
		lead := make([]int, len(shape)-t.Dims())
		for i := range lead {
			lead[i] = 1
		}
		var err error
		if t, err = t.Reshape(append(lead, t.Shape()...)...); err != nil {
			return nil, err
		}
	}
	t, err := t.Expand(shape...)
	if err != nil {
		return nil, err
	}
	if err = c.tensor(t.DType(), shape); err != nil {
		return nil, err
	}
	if t, err = t.Contiguous(); err != nil {
		return nil, err
	}
	flat, err := t.Reshape(-1)
	if n == 0 {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range out {
		v, err := flat.At(i)
		if err != nil {
			return nil, err
		}
		out[i] = from(v)
	}
	return out, nil
}

// storeValues writes results as a tensor of the given type.
func storeValues[N int64 | float64 | complex128](c *call, dt tensor.DType, shape []int, data []N) (*tensor.Tensor, error) {
	if err := c.tensor(dt, shape); err != nil {
		return nil, err
	}
	out, err := tensor.New(dt, shape...)
	if err != nil || len(data) == 0 {
		return out, err
	}
	flat, err := out.Reshape(-1)
	if err != nil {
		return nil, err
	}
	for i, v := range data {
		if err := flat.Set(fit(dt, v), i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fit makes a number that the element type takes: integers wrap, as in C.
func fit[N int64 | float64 | complex128](dt tensor.DType, v N) any {
	switch x := any(v).(type) {
	case int64:
		switch dt {
		case tensor.Uint8:
			return int64(uint8(x)) //nolint:gosec // wraps as torch does
		case tensor.Int8:
			return int64(int8(x)) //nolint:gosec // wraps as torch does
		case tensor.Int16:
			return int64(int16(x)) //nolint:gosec // wraps as torch does
		case tensor.Int32:
			return int64(int32(x)) //nolint:gosec // wraps as torch does
		case tensor.Bool:
			return x != 0
		default:
			return x
		}
	case float64:
		if dt == tensor.Float32 {
			return float32(x)
		}
	}
	return v
}

func elementwise(c *call, f binaryOp, a, b operand) (*tensor.Tensor, error) {
	var as, bs []int
	if a.t != nil {
		as = a.t.Shape()
	}
	if b.t != nil {
		bs = b.t.Shape()
	}
	shape, shapeErr := broadcastShape(as, bs)
	if shapeErr != nil {
		return nil, shapeErr
	}
	dt := promote(a, b)
	if f.float && category(dt) < 2 {
		dt = tensor.Float32
	}
	switch category(dt) {
	case 3:
		if f.complexes == nil {
			return nil, badOperand("not implemented for %v", dt)
		}
		return combined(c, a, b, dt, shape, toComplex, f.complexes)
	case 2:
		return combined(c, a, b, dt, shape, toFloat, f.floats)
	}
	return combined(c, a, b, dt, shape, toInteger, f.ints)
}

// combined computes f of the elements of two operands, as numbers of one kind.
func combined[N int64 | float64 | complex128](c *call, a, b operand, dt tensor.DType, shape []int, from func(any) N, f func(N, N) N) (*tensor.Tensor, error) {
	x, err := values(c, a, shape, from)
	if err != nil {
		return nil, err
	}
	y, err := values(c, b, shape, from)
	if err != nil {
		return nil, err
	}
	for i := range x {
		x[i] = f(x[i], y[i])
	}
	return storeValues(c, dt, shape, x)
}

// mapped computes f of every element, as a number of one kind.
func mapped[N int64 | float64 | complex128](c *call, t *tensor.Tensor, dt tensor.DType, from func(any) N, f func(N) N) (*tensor.Tensor, error) {
	x, err := values(c, operand{t: t}, t.Shape(), from)
	if err != nil {
		return nil, err
	}
	for i := range x {
		x[i] = f(x[i])
	}
	return storeValues(c, dt, t.Shape(), x)
}

func toComplex(v any) complex128 {
	switch x := v.(type) {
	case complex64:
		return complex128(x)
	case complex128:
		return x
	}
	return complex(toFloat(v), 0)
}

func toFloat(v any) float64 {
	switch x := v.(type) {
	case float32:
		return float64(x)
	case float64:
		return x
	case tensor.F16:
		return float64(x.Float32())
	case tensor.BF16:
		return float64(x.Float32())
	case complex128:
		return real(x)
	}
	return float64(toInteger(v))
}

func toInteger(v any) int64 {
	switch x := v.(type) {
	case bool:
		if x {
			return 1
		}
	case uint8:
		return int64(x)
	case int8:
		return int64(x)
	case int16:
		return int64(x)
	case int32:
		return int64(x)
	case int64:
		return x
	case int:
		return int64(x)
	case float64:
		return int64(x)
	case complex128:
		return int64(cmplx.Abs(x))
	}
	return 0
}
