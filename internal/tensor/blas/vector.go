// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package blas

import "unsafe"

// floats32 returns the slice as float32 when it is one.
func floats32[T Float](x []T) ([]float32, bool) {
	if unsafe.Sizeof(T(0)) != 4 {
		return nil, false
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), len(x)), true //nolint:gosec // T is float32
}

// AXPY adds alpha*x to y, rounding the product before the addition as two separate operations would.
func AXPY[T Float](alpha T, x, y []T) {
	y = y[:len(x)]
	done := 0
	if x32, ok := floats32(x); ok {
		y32, _ := floats32(y)
		done = vectorAXPY(float32(alpha), x32, y32)
	}
	x, y = x[done:], y[done:]
	for i, v := range x {
		y[i] += T(alpha * v) //nolint:unconvert // the conversion keeps the compiler from fusing the two
	}
}

// Add sets dst to a+b. dst may be a or b.
func Add[T Float](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := vectors(vectorAdd, dst, a, b); i < len(dst); i++ {
		dst[i] = a[i] + b[i]
	}
}

// Mul2 sets dst to the element-wise product of a and b. dst may be a or b.
func Mul2[T Float](dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := vectors(vectorMul, dst, a, b); i < len(dst); i++ {
		dst[i] = a[i] * b[i]
	}
}

// vectors runs a kernel where there is one for the type, and returns how many elements are done.
func vectors[T Float](kernel func(dst, a, b []float32) int, dst, a, b []T) int {
	d32, ok := floats32(dst)
	if !ok {
		return 0
	}
	a32, _ := floats32(a)
	b32, _ := floats32(b)
	return kernel(d32, a32, b32)
}
