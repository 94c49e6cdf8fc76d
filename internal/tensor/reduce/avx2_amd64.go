// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import "unsafe"

// avx2DivideF32 divides n blocks of 32 bytes, at least one, by a number in place.
//
//go:noescape
func avx2DivideF32(p unsafe.Pointer, by float32, n int)

// The vector kernels: dst = op(a, b) over n blocks of 32 bytes.

//go:noescape
func avx2SumF32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductF32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinF32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxF32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2SumF64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductF64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinF64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxF64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2SumI8(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2SumI16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2SumI32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2SumI64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductI16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductI32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinU8(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxU8(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinI8(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxI8(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinI16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxI16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinI32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxI32(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2AndBits(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2OrBits(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2XorBits(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinI64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxI64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductI64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductI8(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductC64(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductC128(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2SumF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2GlooSumF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2GlooProductF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2GlooMinF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2GlooMaxF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2SumBF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2ProductBF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MinBF16(dst, a, b unsafe.Pointer, n int)

//go:noescape
func avx2MaxBF16(dst, a, b unsafe.Pointer, n int)
