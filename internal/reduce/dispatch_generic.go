// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// combine runs the kernel of a supported pair over n elements.
func combine(dst, a, b unsafe.Pointer, n int, dt tensor.DType, op Op) {
	combinePortable(dst, a, b, n, dt, op)
}
