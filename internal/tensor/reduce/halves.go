// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

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
