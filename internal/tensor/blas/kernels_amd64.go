// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package blas

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var (
	useAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasFMA
	useAVX512 = useAVX2 && cpu.X86.HasAVX512F
)

// The strides of the assembly are in bytes.

//go:noescape
func avx512F32(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)

//go:noescape
func avx512F64(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)

//go:noescape
func avx2F32(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)

//go:noescape
func avx2F64(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool)

// y += alpha*x over blocks of 8 elements.
//
//go:noescape
func axpyF32(alpha float32, x, y unsafe.Pointer, blocks int)

//go:noescape
func addF32(dst, a, b unsafe.Pointer, blocks int)

//go:noescape
func mulF32(dst, a, b unsafe.Pointer, blocks int)

// The kernels are variables so that choosing one costs nothing per product.
var (
	wide32 = kernel[float32]{"avx512", 8, 32, func(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool) {
		avx512F32(k, a, b, c, 4*rowA, 4*stepA, 4*stepB, 4*rowC, add)
	}}
	wide64 = kernel[float64]{"avx512", 8, 16, func(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool) {
		avx512F64(k, a, b, c, 8*rowA, 8*stepA, 8*stepB, 8*rowC, add)
	}}
	fast32 = kernel[float32]{"avx2", 6, 16, func(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool) {
		avx2F32(k, a, b, c, 4*rowA, 4*stepA, 4*stepB, 4*rowC, add)
	}}
	fast64 = kernel[float64]{"avx2", 6, 8, func(k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool) {
		avx2F64(k, a, b, c, 8*rowA, 8*stepA, 8*stepB, 8*rowC, add)
	}}
)

func best[T Float]() kernel[T] {
	all := kernels[T]()
	return all[len(all)-1]
}

// kernels lists those that this processor has, the best last.
func kernels[T Float]() []kernel[T] {
	all := []kernel[T]{portable[T]()}
	add := func(k32 kernel[float32], k64 kernel[float64]) {
		if k, ok := any(k32).(kernel[T]); ok {
			all = append(all, k)
		} else if k, ok := any(k64).(kernel[T]); ok {
			all = append(all, k)
		}
	}
	if useAVX2 {
		add(fast32, fast64)
	}
	if useAVX512 {
		add(wide32, wide64)
	}
	return all
}

// The vector functions return how many elements they did; the rest is the caller's.

func vectorAXPY(alpha float32, x, y []float32) int {
	n := len(x) / 8
	if !useAVX2 || n == 0 {
		return 0
	}
	axpyF32(alpha, unsafe.Pointer(&x[0]), unsafe.Pointer(&y[0]), n) //nolint:gosec // lengths were checked
	return n * 8
}

func vectorAdd(dst, a, b []float32) int {
	n := len(dst) / 8
	if !useAVX2 || n == 0 {
		return 0
	}
	addF32(unsafe.Pointer(&dst[0]), unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), n) //nolint:gosec // lengths were checked
	return n * 8
}

func vectorMul(dst, a, b []float32) int {
	n := len(dst) / 8
	if !useAVX2 || n == 0 {
		return 0
	}
	mulF32(unsafe.Pointer(&dst[0]), unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), n) //nolint:gosec // lengths were checked
	return n * 8
}
