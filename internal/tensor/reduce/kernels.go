// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"math"
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// The portable kernels. They define the semantics; the vector kernels must agree with them bit for bit.
//
// Where the language leaves a result open (which NaN comes out of a sum, fused multiply-add), these kernels say what an
// x86-64 build of gloo gives: the first NaN operand, made quiet, or the negative default NaN when there was none.

type integer interface {
	~int8 | ~uint8 | ~int16 | ~int32 | ~int64
}

type float interface{ ~float32 | ~float64 }

//nolint:gosec // elements of any type behind bytes; lengths are checked
func vec[T any](p unsafe.Pointer, n int) []T { return unsafe.Slice((*T)(p), n) }

func three[T any](dst, a, b unsafe.Pointer, n int) (d, x, y []T) {
	return vec[T](dst, n), vec[T](a, n), vec[T](b, n)
}

func sumInt[T integer](dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[T](dst, a, b, n)
	for i := range d {
		d[i] = x[i] + y[i]
	}
}

func productInt[T integer](dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[T](dst, a, b, n)
	for i := range d {
		d[i] = x[i] * y[i]
	}
}

// minAny is std::min: the first operand unless the second is strictly less. The builtin min would propagate NaN.
func minAny[T integer | float](dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[T](dst, a, b, n)
	for i := range d {
		v := x[i]
		if w := y[i]; w < v {
			v = w
		}
		d[i] = v
	}
}

// maxAny is std::max: the first operand unless it is strictly less than the second.
func maxAny[T integer | float](dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[T](dst, a, b, n)
	for i := range d {
		v := x[i]
		if w := y[i]; v < w {
			v = w
		}
		d[i] = v
	}
}

func andInt[T integer](dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[T](dst, a, b, n)
	for i := range d {
		d[i] = x[i] & y[i]
	}
}

func orInt[T integer](dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[T](dst, a, b, n)
	for i := range d {
		d[i] = x[i] | y[i]
	}
}

func xorInt[T integer](dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[T](dst, a, b, n)
	for i := range d {
		d[i] = x[i] ^ y[i]
	}
}

// nan32 is the NaN that x86-64 gives for an operation on a and b whose result is NaN.
func nan32(a, b float32) float32 {
	const quiet = 0x00400000
	switch {
	case a != a:
		return math.Float32frombits(math.Float32bits(a) | quiet)
	case b != b:
		return math.Float32frombits(math.Float32bits(b) | quiet)
	}
	return math.Float32frombits(0xffc00000)
}

func nan64(a, b float64) float64 {
	const quiet = 0x0008000000000000
	switch {
	case a != a:
		return math.Float64frombits(math.Float64bits(a) | quiet)
	case b != b:
		return math.Float64frombits(math.Float64bits(b) | quiet)
	}
	return math.Float64frombits(0xfff8000000000000)
}

func add32(a, b float32) float32 {
	if r := a + b; r == r {
		return r
	}
	return nan32(a, b)
}

func mul32(a, b float32) float32 {
	if r := float32(a * b); r == r { // the conversion forbids a fused multiply-add
		return r
	}
	return nan32(a, b)
}

func add64(a, b float64) float64 {
	if r := a + b; r == r {
		return r
	}
	return nan64(a, b)
}

func mul64(a, b float64) float64 {
	if r := float64(a * b); r == r {
		return r
	}
	return nan64(a, b)
}

func sumF32(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[float32](dst, a, b, n)
	for i := range d {
		d[i] = add32(x[i], y[i])
	}
}

func productF32(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[float32](dst, a, b, n)
	for i := range d {
		d[i] = mul32(x[i], y[i])
	}
}

func sumF64(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[float64](dst, a, b, n)
	for i := range d {
		d[i] = add64(x[i], y[i])
	}
}

func productF64(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[float64](dst, a, b, n)
	for i := range d {
		d[i] = mul64(x[i], y[i])
	}
}

func sumC64(dst, a, b unsafe.Pointer, n int)  { sumF32(dst, a, b, 2*n) }
func sumC128(dst, a, b unsafe.Pointer, n int) { sumF64(dst, a, b, 2*n) }

// productC64 is the plain formula, each product and sum rounded on its own and without C99's repair of infinities.
func productC64(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[[2]float32](dst, a, b, n)
	for i := range d {
		u, v := x[i], y[i]
		re := sub32(mul32(u[0], v[0]), mul32(u[1], v[1]))
		im := add32(mul32(u[0], v[1]), mul32(u[1], v[0]))
		d[i] = [2]float32{re, im}
	}
}

func productC128(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[[2]float64](dst, a, b, n)
	for i := range d {
		u, v := x[i], y[i]
		re := sub64(mul64(u[0], v[0]), mul64(u[1], v[1]))
		im := add64(mul64(u[0], v[1]), mul64(u[1], v[0]))
		d[i] = [2]float64{re, im}
	}
}

func sub32(a, b float32) float32 {
	if r := a - b; r == r {
		return r
	}
	return nan32(a, b)
}

func sub64(a, b float64) float64 {
	if r := a - b; r == r {
		return r
	}
	return nan64(a, b)
}

// portable holds the kernel of every defined pair; a nil entry is an undefined one.
var portable = [16][numOps]kernel{
	tensor.Uint8:      {sumInt[uint8], productInt[uint8], minAny[uint8], maxAny[uint8], andInt[uint8], orInt[uint8], xorInt[uint8]},
	tensor.Bool:       {sumInt[uint8], productInt[uint8], minAny[uint8], maxAny[uint8], andInt[uint8], orInt[uint8], xorInt[uint8]},
	tensor.Int8:       {sumInt[int8], productInt[int8], minAny[int8], maxAny[int8], andInt[int8], orInt[int8], xorInt[int8]},
	tensor.Int16:      {sumInt[int16], productInt[int16], minAny[int16], maxAny[int16], andInt[int16], orInt[int16], xorInt[int16]},
	tensor.Int32:      {sumInt[int32], productInt[int32], minAny[int32], maxAny[int32], andInt[int32], orInt[int32], xorInt[int32]},
	tensor.Int64:      {sumInt[int64], productInt[int64], minAny[int64], maxAny[int64], andInt[int64], orInt[int64], xorInt[int64]},
	tensor.Float32:    {sumF32, productF32, minAny[float32], maxAny[float32]},
	tensor.Float64:    {sumF64, productF64, minAny[float64], maxAny[float64]},
	tensor.Float16:    {sumF16, productF16, minF16, maxF16},
	tensor.BFloat16:   {sumBF16, productBF16, minBF16, maxBF16},
	tensor.Complex64:  {sumC64, productC64},
	tensor.Complex128: {sumC128, productC128},
}

// Halves are computed in float32 and rounded to nearest even. Minimum and maximum compare as float32 and keep the bits.

// glooF16 is gloo's conversion from float32: every NaN becomes 0x7fff.
func glooF16(f float32) tensor.F16 {
	if f != f {
		return 0x7fff
	}
	return tensor.ToF16(f)
}

func addF16(x, y tensor.F16) tensor.F16 { return glooF16(x.Float32() + y.Float32()) }
func mulF16(x, y tensor.F16) tensor.F16 { return glooF16(x.Float32() * y.Float32()) }

// lessF16 and moreF16 are std::min and std::max: the first operand unless the second is strictly better.
func lessF16(x, y tensor.F16) tensor.F16 {
	if y.Float32() < x.Float32() {
		return y
	}
	return x
}

func moreF16(x, y tensor.F16) tensor.F16 {
	if x.Float32() < y.Float32() {
		return y
	}
	return x
}

func sumF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		d[i] = addF16(x[i], y[i])
	}
}

func productF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		d[i] = mulF16(x[i], y[i])
	}
}

func minF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		d[i] = lessF16(x[i], y[i])
	}
}

func maxF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		d[i] = moreF16(x[i], y[i])
	}
}

func sumBF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.BF16](dst, a, b, n)
	for i := range d {
		d[i] = tensor.ToBF16(x[i].Float32() + y[i].Float32())
	}
}

func productBF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.BF16](dst, a, b, n)
	for i := range d {
		d[i] = tensor.ToBF16(x[i].Float32() * y[i].Float32())
	}
}

func minBF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.BF16](dst, a, b, n)
	for i := range d {
		v := x[i]
		if w := y[i]; w.Float32() < v.Float32() {
			v = w
		}
		d[i] = v
	}
}

func maxBF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.BF16](dst, a, b, n)
	for i := range d {
		v := x[i]
		if w := y[i]; v.Float32() < w.Float32() {
			v = w
		}
		d[i] = v
	}
}
