// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// number is the set of types that are computed with.
type number interface {
	float32 | float64 | int64 | complex128
}

// ComputeType returns the type that a type is computed in.
func ComputeType(dt tensor.DType) tensor.DType {
	switch KindOf(dt) { //nolint:exhaustive // the others are computed as int64
	case Complex:
		return tensor.Complex128
	case Real:
		if dt == tensor.Float64 {
			return tensor.Float64
		}
		return tensor.Float32
	}
	return tensor.Int64
}

// dense returns the elements of a tensor in row-major order. They are the tensor's own memory where that is possible:
// read only.
func dense[T tensor.Element](t *tensor.Tensor) ([]T, error) {
	if data, err := tensor.Data[T](t); err == nil {
		return data, nil
	}
	return tensor.Copy[T](t) // strided, or not aligned
}

// numbers returns the elements converted to a computing type: read only.
func numbers[T number](op string, t *tensor.Tensor) ([]T, error) {
	if t.DType() == tensor.TypeOf[T]() {
		return dense[T](t)
	}
	switch t.DType() {
	case tensor.Bool:
		return convert(t, func(v bool) T {
			if v {
				return 1
			}
			return 0
		})
	case tensor.Uint8:
		return convert(t, fromInt[uint8, T])
	case tensor.Int8:
		return convert(t, fromInt[int8, T])
	case tensor.Int16:
		return convert(t, fromInt[int16, T])
	case tensor.Int32:
		return convert(t, fromInt[int32, T])
	case tensor.Int64:
		return convert(t, fromInt[int64, T])
	case tensor.Float16:
		return convert(t, func(v tensor.F16) T { return fromFloat[T](float64(v.Float32())) })
	case tensor.BFloat16:
		return convert(t, func(v tensor.BF16) T { return fromFloat[T](float64(v.Float32())) })
	case tensor.Float32:
		return convert(t, func(v float32) T { return fromFloat[T](float64(v)) })
	case tensor.Float64:
		return convert(t, fromFloat[T])
	case tensor.Complex64:
		return convert(t, func(v complex64) T { return fromComplex[T](complex128(v)) })
	case tensor.Complex128:
		return convert(t, fromComplex[T])
	default:
		return nil, unsupported(op, t.DType(), anyType)
	}
}

func convert[S tensor.Element, T number](t *tensor.Tensor, f func(S) T) ([]T, error) {
	data, err := dense[S](t)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(data))
	for i, v := range data {
		out[i] = f(v)
	}
	return out, nil
}

func fromInt[S uint8 | int8 | int16 | int32 | int64, T number](v S) T {
	var out T
	switch p := any(&out).(type) {
	case *float32:
		*p = float32(v)
	case *float64:
		*p = float64(v)
	case *int64:
		*p = int64(v)
	case *complex128:
		*p = complex(float64(v), 0)
	}
	return out
}

func fromFloat[T number](v float64) T {
	var out T
	switch p := any(&out).(type) {
	case *float32:
		*p = float32(v)
	case *float64:
		*p = v
	case *int64:
		*p = int64(v)
	case *complex128:
		*p = complex(v, 0)
	}
	return out
}

func fromComplex[T number](v complex128) T {
	if p, ok := any(&v).(*T); ok {
		return *p
	}
	return fromFloat[T](real(v))
}

func fromNumber[T number](v any) T {
	switch x := v.(type) {
	case bool:
		if x {
			return 1
		}
		return 0
	case int64:
		return fromInt[int64, T](x)
	case float64:
		return fromFloat[T](x)
	case complex128:
		return fromComplex[T](x)
	}
	return 0
}

// wrap makes a tensor of computed elements without a copy.
func wrap[T tensor.Element](data []T, shape []int) (*tensor.Tensor, error) {
	t, err := tensor.From(data)
	if err != nil {
		return nil, err
	}
	return t.View(shape...)
}

// finish makes a tensor of computed elements in its final type; data is not used elsewhere.
func finish[T number](op string, data []T, shape []int, dt tensor.DType) (*tensor.Tensor, error) {
	if dt == tensor.TypeOf[T]() {
		return wrap(data, shape)
	}
	switch dt {
	case tensor.Bool:
		return store(data, shape, func(v T) bool { return v != 0 })
	case tensor.Uint8:
		return store(data, shape, func(v T) uint8 { return uint8(toInt(v)) }) //nolint:gosec // integers wrap, as in C
	case tensor.Int8:
		return store(data, shape, func(v T) int8 { return int8(toInt(v)) }) //nolint:gosec // integers wrap, as in C
	case tensor.Int16:
		return store(data, shape, func(v T) int16 { return int16(toInt(v)) }) //nolint:gosec // integers wrap, as in C
	case tensor.Int32:
		return store(data, shape, func(v T) int32 { return int32(toInt(v)) }) //nolint:gosec // integers wrap, as in C
	case tensor.Int64:
		return store(data, shape, toInt[T])
	case tensor.Float16:
		return store(data, shape, func(v T) tensor.F16 { return tensor.ToF16(float32(toFloat(v))) })
	case tensor.BFloat16:
		return store(data, shape, func(v T) tensor.BF16 { return tensor.ToBF16(float32(toFloat(v))) })
	case tensor.Float32:
		return store(data, shape, func(v T) float32 { return float32(toFloat(v)) })
	case tensor.Float64:
		return store(data, shape, toFloat[T])
	case tensor.Complex64:
		return store(data, shape, func(v T) complex64 { return complex64(toComplex(v)) })
	case tensor.Complex128:
		return store(data, shape, toComplex[T])
	default:
		return nil, unsupported(op, dt, anyType)
	}
}

func store[T number, D tensor.Element](data []T, shape []int, f func(T) D) (*tensor.Tensor, error) {
	out := make([]D, len(data))
	for i, v := range data {
		out[i] = f(v)
	}
	return wrap(out, shape)
}

func toInt[T number](v T) int64 {
	switch x := any(v).(type) {
	case int64:
		return x
	case float32:
		return int64(x)
	case float64:
		return int64(x)
	case complex128:
		return int64(real(x))
	}
	return 0
}

func toFloat[T number](v T) float64 {
	switch x := any(v).(type) {
	case int64:
		return float64(x)
	case float32:
		return float64(x)
	case float64:
		return x
	case complex128:
		return real(x)
	}
	return 0
}

func toComplex[T number](v T) complex128 {
	if x, ok := any(v).(complex128); ok {
		return x
	}
	return complex(toFloat(v), 0)
}

// Convert returns the tensor in another element type: itself when it has that type already. It corresponds to Tensor.to.
func Convert(t *tensor.Tensor, dt tensor.DType) (*tensor.Tensor, error) {
	const op = "convert"
	if t.DType() == dt {
		return t, nil
	}
	for _, x := range []tensor.DType{t.DType(), dt} {
		if !Computes(x) {
			return nil, bad(op, "%v to %v is not implemented: %v has no arithmetic and can only be stored and sent", t.DType(), dt, x)
		}
	}
	switch ComputeType(t.DType()) {
	case tensor.Float32:
		return convertFrom[float32](t, dt)
	case tensor.Float64:
		return convertFrom[float64](t, dt)
	case tensor.Complex128:
		return convertFrom[complex128](t, dt)
	default:
		return convertFrom[int64](t, dt)
	}
}

func convertFrom[T number](t *tensor.Tensor, dt tensor.DType) (*tensor.Tensor, error) {
	data, err := numbers[T]("convert", t)
	if err != nil {
		return nil, err
	}
	return finish("convert", data, t.Shape(), dt)
}

// raw returns the tensor's memory from its first element on, for code that goes by strides, or a dense copy and its own
// strides when the memory is not aligned.
func raw[T tensor.Element](t *tensor.Tensor) (data []T, strides []int, err error) {
	bytes, err := t.Storage().Bytes()
	if err != nil {
		return nil, nil, err
	}
	size := t.DType().Size()
	bytes = bytes[min(len(bytes), t.Offset()*size):]
	p := unsafe.Pointer(unsafe.SliceData(bytes)) //nolint:gosec // a view of elements; lengths are checked
	var zero T
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		if t, err = t.Clone(); err != nil {
			return nil, nil, err
		}
		data, err = tensor.Data[T](t)
		return data, t.Strides(), err
	}
	return unsafe.Slice((*T)(p), len(bytes)/size), t.Strides(), nil //nolint:gosec // a view of elements; lengths are checked
}
