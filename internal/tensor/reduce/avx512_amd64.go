// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import "unsafe"

// The vector kernels of 16-bit floats with 512-bit registers: dst = op(a, b) over n blocks of 32 bytes.

//go:noescape
func avx512SumF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512ProductF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512MinF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512MaxF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512GlooSumF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512GlooProductF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512GlooMinF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512GlooMaxF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512SumBF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512ProductBF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512MinBF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx512MaxBF16(dst, a, b unsafe.Pointer, n int)
