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

// Torch is [Into] with the float16 of torch (c10::Half), which gloo uses from PyTorch 2.8 on: as [Into], but a NaN keeps the sign
// of the first operand that is one, and loses the rest.
func Torch(dst, src []byte, dt tensor.DType, op Op) {
	kernel := kernelOf(op)
	if dt != tensor.Float16 || kernel != Sum && kernel != Product {
		Into(dst, src, dt, op)
		return
	}
	check(dst, dst, src, dt, op)
	for i := 0; i < len(dst); i += 2 { // byte by byte: buffers need not be aligned
		x, y := binary.LittleEndian.Uint16(dst[i:]), binary.LittleEndian.Uint16(src[i:])
		binary.LittleEndian.PutUint16(dst[i:], uint16(torchF16(tensor.F16(x), tensor.F16(y), kernel)))
	}
}

func torchF16(x, y tensor.F16, op Op) tensor.F16 {
	const nan, sign = 0x7e00, 0x8000
	a, b := x.Float32(), y.Float32()
	switch {
	case a != a:
		return nan | x&sign
	case b != b:
		return nan | y&sign
	}
	r := a + b
	if op == Product {
		r = a * b
	}
	if r != r { // of infinities, or of one and zero
		return nan | sign
	}
	return tensor.ToF16(r)
}

// DivideComplex divides complex numbers, given as pairs of float32 or float64, by n as torch's division of a complex tensor by a
// number does: times the reciprocal, with the terms of the imaginary part of the divisor, which is zero.
func DivideComplex(buf []byte, part tensor.DType, n int) {
	switch {
	case part == tensor.Float32 && len(buf)%8 == 0:
		q := 1 / float32(n)
		for ; len(buf) > 0; buf = buf[8:] {
			a, b := math.Float32frombits(binary.LittleEndian.Uint32(buf)), math.Float32frombits(binary.LittleEndian.Uint32(buf[4:]))
			binary.LittleEndian.PutUint32(buf, math.Float32bits(float32(a+float32(b*0))*q))
			binary.LittleEndian.PutUint32(buf[4:], math.Float32bits(float32(b-float32(a*0))*q))
		}
	case part == tensor.Float64 && len(buf)%16 == 0:
		q := 1 / float64(n)
		for ; len(buf) > 0; buf = buf[16:] {
			a, b := math.Float64frombits(binary.LittleEndian.Uint64(buf)), math.Float64frombits(binary.LittleEndian.Uint64(buf[8:]))
			binary.LittleEndian.PutUint64(buf, math.Float64bits(float64(a+float64(b*0))*q))
			binary.LittleEndian.PutUint64(buf[8:], math.Float64bits(float64(b-float64(a*0))*q))
		}
	default:
		panic(fmt.Sprintf("reduce: divide %d bytes of pairs of %s by %d", len(buf), part, n))
	}
}

// Gloo is [Into] with a fault of gloo's float16 kept, for worlds in which PyTorch ranks do the same arithmetic and the
// result must not depend on which rank is Go.
//
// The fault: gloo's assignment operator of float16 does nothing when it believes that the value would not change, and it
// compares the new bits with the wrong thing, the half-precision number nearest to the old bits read as an integer. So
// 1.0 (0x3c00, which is 15360) is not overwritten by 15360.0: max(1.0, 15360.0) is 1.0 on such a rank. Seen with PyTorch
// 1.13.1 and 2.6.0. Among Go ranks use [Into].
func Gloo(dst, src []byte, dt tensor.DType, op Op) {
	if dt != tensor.Float16 {
		Into(dst, src, dt, op)
		return
	}
	check(dst, dst, src, dt, op)
	if len(dst) == 0 {
		return
	}
	//nolint:gosec // elements of any type behind bytes; lengths are checked
	pd, ps := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	combineGlooF16(pd, pd, ps, len(dst)/2, kernelOf(op))
}

// assignF16 is gloo's assignment of value to a float16 that holds old.
func assignF16(old, value tensor.F16) tensor.F16 {
	if value == glooF16(float32(uint16(old))) {
		return old
	}
	return value
}

func glooF16Kernel(op func(x, y tensor.F16) tensor.F16) kernel {
	return func(dst, a, b unsafe.Pointer, n int) {
		d, x, y := three[tensor.F16](dst, a, b, n)
		for i := range d {
			d[i] = assignF16(x[i], op(x[i], y[i]))
		}
	}
}

var glooF16Kernels = [numOps]kernel{
	Sum:     glooF16Kernel(addF16),
	Product: glooF16Kernel(mulF16),
	Min:     glooF16Kernel(lessF16),
	Max:     glooF16Kernel(moreF16),
}

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
