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
