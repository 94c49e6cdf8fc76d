// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// Scales reports whether [Scale] is defined for dt: floating-point and complex numbers.
func Scales(dt tensor.DType) bool {
	switch dt {
	case tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64, tensor.Complex64, tensor.Complex128:
		return true
	default:
		return false
	}
}

// Scale multiplies every element of buf by factor in place, the factor rounded to the element type first, as torch does with a
// factor and a tensor; halves are multiplied in float32. The buffer may have any alignment.
func Scale(buf []byte, dt tensor.DType, factor float64) {
	le := binary.LittleEndian
	switch dt {
	case tensor.Float32, tensor.Complex64:
		f := float32(factor)
		for i := 0; i+4 <= len(buf); i += 4 {
			le.PutUint32(buf[i:], math.Float32bits(math.Float32frombits(le.Uint32(buf[i:]))*f))
		}
	case tensor.Float64, tensor.Complex128:
		for i := 0; i+8 <= len(buf); i += 8 {
			le.PutUint64(buf[i:], math.Float64bits(math.Float64frombits(le.Uint64(buf[i:]))*factor))
		}
	case tensor.Float16:
		f := float32(factor)
		for i := 0; i+2 <= len(buf); i += 2 {
			le.PutUint16(buf[i:], uint16(tensor.ToF16(tensor.F16(le.Uint16(buf[i:])).Float32()*f)))
		}
	case tensor.BFloat16:
		f := float32(factor)
		for i := 0; i+2 <= len(buf); i += 2 {
			le.PutUint16(buf[i:], uint16(tensor.ToBF16(tensor.BF16(le.Uint16(buf[i:])).Float32()*f)))
		}
	default:
		panic("reduce: scale " + dt.String())
	}
}

// Divide divides every element of buf by n in place: the end of an average. Floating types are divided as torch's div_
// does (halves in float32), integers towards zero, as NCCL's average of integers.
func Divide(buf []byte, dt tensor.DType, n int) {
	size := dt.Size()
	if size == 0 || len(buf)%size != 0 || n <= 0 {
		panic(fmt.Sprintf("reduce: divide %d bytes of %s by %d", len(buf), dt, n))
	}
	if n == 1 || len(buf) == 0 {
		return
	}
	p := unsafe.Pointer(unsafe.SliceData(buf)) //nolint:gosec // elements of any type behind bytes; lengths are checked
	if uintptr(p)%uintptr(min(size, 8)) == 0 {
		divide(p, len(buf)/size, dt, n)
		return
	}
	// Not every processor reads unaligned elements: go through an aligned block.
	var room [256]uint64
	//nolint:gosec // elements of any type behind bytes; lengths are checked
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&room)), len(room)*8)
	for len(buf) > 0 {
		m := copy(bytes, buf)
		divide(unsafe.Pointer(&room), m/size, dt, n) //nolint:gosec // elements of any type behind bytes; lengths are checked
		copy(buf, bytes[:m])
		buf = buf[m:]
	}
}

func divide(p unsafe.Pointer, count int, dt tensor.DType, n int) {
	switch dt {
	case tensor.Uint8, tensor.Bool:
		v := vec[uint8](p, count)
		for i := range v {
			v[i] = uint8(int(v[i]) / n) //nolint:gosec // a quotient of a byte
		}
	case tensor.Int8:
		divideInt[int8](p, count, n)
	case tensor.Int16:
		divideInt[int16](p, count, n)
	case tensor.Int32:
		divideInt[int32](p, count, n)
	case tensor.Int64:
		divideInt[int64](p, count, n)
	case tensor.Float32, tensor.Complex64:
		v := vec[float32](p, count*dt.Size()/4)
		v = v[divideVectors(v, float32(n)):]
		for i := range v {
			v[i] /= float32(n)
		}
	case tensor.Float64, tensor.Complex128:
		v := vec[float64](p, count*dt.Size()/8)
		for i := range v {
			v[i] /= float64(n)
		}
	case tensor.Float16:
		v := vec[tensor.F16](p, count)
		for i := range v {
			v[i] = tensor.ToF16(v[i].Float32() / float32(n))
		}
	case tensor.BFloat16:
		v := vec[tensor.BF16](p, count)
		for i := range v {
			v[i] = tensor.ToBF16(v[i].Float32() / float32(n))
		}
	default: // not carried
	}
}

func divideInt[T int8 | int16 | int32 | int64](p unsafe.Pointer, count, n int) {
	v := vec[T](p, count)
	for i := range v {
		v[i] = T(int64(v[i]) / int64(n))
	}
}
