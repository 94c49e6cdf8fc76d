// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/cohort-dist/cohort/tensor"
)

// block is the bytes of one step of a vector kernel.
const block = 32

// useAVX2 says that this processor has all that the vector kernels use. Every processor with AVX2 has F16C, but a
// hypervisor may hide it, and x/sys/cpu does not report it; its bit is read in hasF16C.
var useAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA && hasF16C()

// useAVX512 adds what the kernels of 16-bit floats in 512-bit registers use.
var useAVX512 = useAVX2 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ

// hasF16C reports the processor's half-precision conversions (CPUID.1:ECX bit 29).
func hasF16C() bool

// combine runs the kernel of a supported pair over n elements: whole blocks by the vector kernel, the rest portably.
func combine(dst, a, b unsafe.Pointer, n int, dt tensor.DType, op Op) {
	run(&vector[dt][op], portable[dt][op], dst, a, b, n, dt.Size())
}

func combineGlooF16(dst, a, b unsafe.Pointer, n int, op Op) {
	run(&vectorGlooF16[op], glooF16Kernels[op], dst, a, b, n, 2)
}

func run(fast *kernel, slow kernel, dst, a, b unsafe.Pointer, n, size int) {
	if blocks := n * size / block; blocks > 0 && useAVX2 {
		(*fast)(dst, a, b, blocks)
		done := blocks * block
		if n -= done / size; n == 0 {
			return // a pointer behind the end would keep a neighbour alive
		}
		dst, a, b = unsafe.Add(dst, done), unsafe.Add(a, done), unsafe.Add(b, done)
	}
	slow(dst, a, b, n) // x86 reads elements at any address
}

// divideVectors divides whole blocks and returns how many elements they have.
func divideVectors(v []float32, by float32) int {
	blocks := len(v) * 4 / block
	if blocks == 0 || !useAVX2 {
		return 0
	}
	avx2DivideF32(unsafe.Pointer(&v[0]), by, blocks) //nolint:gosec // a block or more
	return blocks * block / 4
}

// vector holds the kernels for this processor.
var vector = choose(useAVX512)

var vectorGlooF16 = chooseGlooF16(useAVX512)

// choose returns the best kernels: wider registers pay for 16-bit floats, whose conversion is most of the work, and for
// nothing else.
func choose(wide bool) [16][numOps]kernel {
	k := narrow
	if wide {
		k[tensor.Float16] = [numOps]kernel{avx512SumF16, avx512ProductF16, avx512MinF16, avx512MaxF16}
		k[tensor.BFloat16] = [numOps]kernel{avx512SumBF16, avx512ProductBF16, avx512MinBF16, avx512MaxBF16}
	}
	return k
}

func chooseGlooF16(wide bool) [numOps]kernel {
	if wide {
		return [numOps]kernel{avx512GlooSumF16, avx512GlooProductF16, avx512GlooMinF16, avx512GlooMaxF16}
	}
	return [numOps]kernel{avx2GlooSumF16, avx2GlooProductF16, avx2GlooMinF16, avx2GlooMaxF16}
}

var narrow = [16][numOps]kernel{
	tensor.Uint8:      {avx2SumI8, avx2ProductI8, avx2MinU8, avx2MaxU8, avx2AndBits, avx2OrBits, avx2XorBits},
	tensor.Bool:       {avx2SumI8, avx2ProductI8, avx2MinU8, avx2MaxU8, avx2AndBits, avx2OrBits, avx2XorBits},
	tensor.Int8:       {avx2SumI8, avx2ProductI8, avx2MinI8, avx2MaxI8, avx2AndBits, avx2OrBits, avx2XorBits},
	tensor.Int16:      {avx2SumI16, avx2ProductI16, avx2MinI16, avx2MaxI16, avx2AndBits, avx2OrBits, avx2XorBits},
	tensor.Int32:      {avx2SumI32, avx2ProductI32, avx2MinI32, avx2MaxI32, avx2AndBits, avx2OrBits, avx2XorBits},
	tensor.Int64:      {avx2SumI64, avx2ProductI64, avx2MinI64, avx2MaxI64, avx2AndBits, avx2OrBits, avx2XorBits},
	tensor.Float32:    {avx2SumF32, avx2ProductF32, avx2MinF32, avx2MaxF32},
	tensor.Float64:    {avx2SumF64, avx2ProductF64, avx2MinF64, avx2MaxF64},
	tensor.Float16:    {avx2SumF16, avx2ProductF16, avx2MinF16, avx2MaxF16},
	tensor.BFloat16:   {avx2SumBF16, avx2ProductBF16, avx2MinBF16, avx2MaxBF16},
	tensor.Complex64:  {avx2SumF32, avx2ProductC64},
	tensor.Complex128: {avx2SumF64, avx2ProductC128},
}

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
