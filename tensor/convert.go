// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"reflect"
	"slices"
	"unsafe"

	"github.com/cohort-dist/cohort"
)

// Element is the set of Go types that tensors hold. An int is an [Int64] element (an [Int32] one on 32-bit machines).
type Element interface {
	uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | int | float32 | float64 | complex64 | complex128 | bool | F16 | BF16
}

// TypeOf returns the element type of a Go type.
func TypeOf[T Element]() DType {
	var zero T
	dt, _ := typeOfValue(any(zero))
	return dt
}

func typeOfValue(v any) (DType, bool) {
	switch v.(type) {
	case uint8:
		return Uint8, true
	case int8:
		return Int8, true
	case int16:
		return Int16, true
	case int32:
		return Int32, true
	case int64:
		return Int64, true
	case int:
		if unsafe.Sizeof(int(0)) == 4 {
			return Int32, true
		}
		return Int64, true
	case float32:
		return Float32, true
	case float64:
		return Float64, true
	case complex64:
		return Complex64, true
	case complex128:
		return Complex128, true
	case bool:
		return Bool, true
	case F16:
		return Float16, true
	case BF16:
		return BFloat16, true
	case uint16:
		return Uint16, true
	case uint32:
		return Uint32, true
	case uint64:
		return Uint64, true
	}
	return 0, false
}

// From returns a tensor over data without a copy: writing to one is writing to the other. Without a shape the tensor
// has one dimension. It corresponds to torch.frombuffer.
func From[T Element](data []T, shape ...int) (*Tensor, error) {
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	var zero T
	dt, _ := typeOfValue(zero)
	n, err := bytesOf("tensor: from", dt, shape)
	if err != nil {
		return nil, err
	}
	if n != len(data)*dt.Size() {
		return nil, cohort.Newf("tensor: from", cohort.InvalidArgument, "shape %v does not fit a slice of %d elements", shape, len(data))
	}
	//nolint:gosec // a view of elements as bytes; n is their length
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), n)
	return contiguous(&Storage{data: bytes[:n:n], origin: "slice"}, dt, slices.Clone(shape)), nil
}

func sliceStorage[T Element](data []T) *Storage {
	var zero T
	n := len(data) * int(unsafe.Sizeof(zero))
	//nolint:gosec // a view of elements as bytes; lengths are checked
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), n)
	return &Storage{data: bytes[:n:n], origin: "slice"}
}

// Data returns the elements of a contiguous tensor as a Go slice without a copy. T must be the tensor's own element type.
// It corresponds to Tensor.numpy.
func Data[T Element](t *Tensor) ([]T, error) {
	if t == nil {
		return nil, cohort.New("tensor: data", cohort.InvalidArgument, "the tensor is nil")
	}
	if dt := TypeOf[T](); dt != t.dtype {
		return nil, cohort.Newf("tensor: data", cohort.InvalidArgument, "the elements are %v, not %v", t.dtype, dt)
	}
	bytes, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	p := unsafe.Pointer(unsafe.SliceData(bytes)) //nolint:gosec // a view of elements as bytes; lengths are checked
	var zero T
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		return nil, cohort.Newf("tensor: data", cohort.InvalidArgument, "the memory is not aligned for %v: use Clone first", t.dtype)
	}
	return unsafe.Slice((*T)(p), t.numel), nil //nolint:gosec // a view of elements as bytes; lengths are checked
}

// Of returns a tensor of a Go value: a number or bool, a slice or array of them, or nested slices of equal lengths. A flat
// slice is not copied, everything else is. A *Tensor is returned as it is. It corresponds to torch.tensor, except that
// float64 values stay float64.
func Of(x any) (*Tensor, error) {
	if t, ok := fromFlat(x); ok {
		return t, nil
	}
	const op = "tensor: of"
	v := reflect.ValueOf(x)
	var shape []int
	elem := v
	for elem.IsValid() && (elem.Kind() == reflect.Slice || elem.Kind() == reflect.Array) {
		if len(shape) == MaxDims {
			return nil, cohort.Newf(op, cohort.InvalidArgument, "more than %d dimensions", MaxDims)
		}
		shape = append(shape, elem.Len())
		if elem.Len() == 0 {
			elem = reflect.Zero(elem.Type().Elem())
			continue
		}
		elem = elem.Index(0)
	}
	if !elem.IsValid() {
		return nil, cohort.Newf(op, cohort.InvalidArgument, "%T is not a number, a bool or slices of them", x)
	}
	dt, ok := typeOfValue(elem.Interface())
	if !ok {
		return nil, cohort.Newf(op, cohort.InvalidArgument, "%T is not a number, a bool or slices of them", x)
	}
	t, err := New(dt, shape...)
	if err != nil {
		return nil, err
	}
	i := 0
	if err := t.gather(v, 0, &i); err != nil {
		return nil, err
	}
	return t, nil
}

func fromFlat(x any) (*Tensor, bool) {
	switch v := x.(type) {
	case *Tensor:
		return v, v != nil
	case []uint8:
		return flat(v), true
	case []int8:
		return flat(v), true
	case []int16:
		return flat(v), true
	case []int32:
		return flat(v), true
	case []int64:
		return flat(v), true
	case []int:
		return flat(v), true
	case []float32:
		return flat(v), true
	case []float64:
		return flat(v), true
	case []complex64:
		return flat(v), true
	case []complex128:
		return flat(v), true
	case []bool:
		return flat(v), true
	case []F16:
		return flat(v), true
	case []BF16:
		return flat(v), true
	case []uint16:
		return flat(v), true
	case []uint32:
		return flat(v), true
	case []uint64:
		return flat(v), true
	}
	return nil, false
}

func flat[T Element](data []T) *Tensor {
	return contiguous(sliceStorage(data), TypeOf[T](), []int{len(data)})
}

// gather copies nested slices into t in row-major order, insisting on equal lengths.
func (t *Tensor) gather(v reflect.Value, depth int, i *int) error {
	if depth == len(t.shape) {
		if err := t.store(*i, v.Interface()); err != nil {
			return err
		}
		*i++
		return nil
	}
	if v.Len() != t.shape[depth] {
		return cohort.Newf("tensor: of", cohort.InvalidArgument,
			"a slice of %d elements at depth %d beside one of %d: all must have the same length", v.Len(), depth, t.shape[depth])
	}
	for j := range v.Len() {
		if err := t.gather(v.Index(j), depth+1, i); err != nil {
			return err
		}
	}
	return nil
}
