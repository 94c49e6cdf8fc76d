// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

// TestEveryVectorSet runs the kernels of each register width that this processor has, not only the ones it would choose.
func TestEveryVectorSet(t *testing.T) {
	t.Parallel()
	for _, wide := range []bool{false, true} {
		if wide && !useAVX512 || !useAVX2 {
			t.Logf("this processor lacks the kernels of set wide=%v", wide)
			continue
		}
		kernels, gloo := choose(wide), chooseGlooF16(wide)
		for _, dt := range allTypes {
			for op := range Avg {
				if !Supported(dt, op) {
					continue
				}
				checkKernel(t, fmt.Sprintf("%v of %v, wide %v", op, dt, wide), kernels[dt][op], portable[dt][op], dt)
				if dt == tensor.Float16 {
					checkKernel(t, fmt.Sprintf("gloo %v, wide %v", op, wide), gloo[op], glooF16Kernels[op], dt)
				}
			}
		}
	}
}

func checkKernel(t *testing.T, name string, fast, slow kernel, dt tensor.DType) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(dt), 3))
	for _, blocks := range []int{1, 3, 4, 5, 64} {
		a, b := make([]byte, blocks*block), make([]byte, blocks*block)
		fill(a, dt, r.Uint64)
		fill(b, dt, r.Uint64)
		got, want := make([]byte, len(a)+1)[1:], make([]byte, len(a))
		fast(unsafe.Pointer(&got[0]), unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), blocks)
		slow(unsafe.Pointer(&want[0]), unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), len(a)/dt.Size())
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d blocks differ", name, blocks)
		}
	}
}
