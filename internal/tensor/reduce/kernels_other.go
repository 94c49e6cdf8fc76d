// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package reduce

import (
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// divideVectors divides nothing: there are no vector kernels.
func divideVectors([]float32, float32) int { return 0 }

// combine runs the kernel of a supported pair over n elements.
func combine(dst, a, b unsafe.Pointer, n int, dt tensor.DType, op Op) {
	runPortable(portable[dt][op], dst, a, b, n, uintptr(dt.Size()))
}

func combineGlooF16(dst, a, b unsafe.Pointer, n int, op Op) {
	runPortable(glooF16Kernels[op], dst, a, b, n, 2)
}
