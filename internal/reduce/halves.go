// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// Halves are computed in float32 and rounded to nearest even.

// glooF32 is gloo's conversion: every NaN becomes the same positive one.
func glooF32(h tensor.F16) float32 { return h.Float32() }

// glooF16 is gloo's conversion back: NaN becomes 0x7fff.
func glooF16(f float32) tensor.F16 {
	if f != f {
		return 0x7fff
	}
	return tensor.ToF16(f)
}

func sumF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		d[i] = glooF16(glooF32(x[i]) + glooF32(y[i]))
	}
}

func productF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		d[i] = glooF16(glooF32(x[i]) * glooF32(y[i]))
	}
}

func minF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		v := x[i]
		if w := y[i]; glooF32(w) < glooF32(v) {
			v = w
		}
		d[i] = v
	}
}

func maxF16(dst, a, b unsafe.Pointer, n int) {
	d, x, y := three[tensor.F16](dst, a, b, n)
	for i := range d {
		v := x[i]
		if w := y[i]; glooF32(v) < glooF32(w) {
			v = w
		}
		d[i] = v
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
