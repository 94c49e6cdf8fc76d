// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package reduce

import (
	"fmt"
	"strconv"
	"testing"
	"unsafe"

	"github.com/cohort-dist/cohort/tensor"
)

func BenchmarkInto(b *testing.B) {
	for _, dt := range allTypes {
		for _, op := range []Op{Sum, Product, Max} {
			if !Supported(dt, op) {
				continue
			}
			for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
				dst, src := make([]byte, size), make([]byte, size)
				b.Run(fmt.Sprintf("%v/%v/%dKiB", dt, op, size>>10), func(b *testing.B) {
					b.SetBytes(int64(size))
					for b.Loop() {
						Into(dst, src, dt, op)
					}
				})
			}
		}
	}
}

func BenchmarkPortable(b *testing.B) {
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16, tensor.Int64} {
		const size = 64 << 10
		dst, src := make([]uint64, size/8), make([]uint64, size/8)
		b.Run(fmt.Sprintf("%v/sum/64KiB", dt), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				portable[dt][Sum](unsafe.Pointer(&dst[0]), unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), size/dt.Size())
			}
		})
	}
}

func BenchmarkMany(b *testing.B) {
	for _, n := range []int{2, 4, 8} {
		const size = 64 << 10
		srcs := make([][]byte, n)
		for i := range srcs {
			srcs[i] = make([]byte, size)
		}
		dst := make([]byte, size)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				Many(dst, srcs, tensor.Float32, Sum)
			}
		})
	}
}
