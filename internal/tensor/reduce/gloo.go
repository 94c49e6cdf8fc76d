// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

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
	pd, ps := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src)) //nolint:gosec // elements of any type behind bytes; lengths are checked
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
