// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package blas

import "unsafe"

// portable is the kernel for every processor.
func portable[T Float]() kernel[T] {
	return kernel[T]{name: "portable", mr: 4, nr: 4, run: tile4x4[T]}
}

func tile4x4[T Float](k int, a, b, c unsafe.Pointer, ldc int, add bool) {
	var s [4][4]T
	x, y := unsafe.Slice((*T)(a), 4*k), unsafe.Slice((*T)(b), 4*k) //nolint:gosec // packed panels of this length
	for len(x) >= 4 && len(y) >= 4 {
		b0, b1, b2, b3 := y[0], y[1], y[2], y[3]
		for i := range 4 {
			v := x[i]
			s[i][0] += v * b0
			s[i][1] += v * b1
			s[i][2] += v * b2
			s[i][3] += v * b3
		}
		x, y = x[4:], y[4:]
	}
	out := unsafe.Slice((*T)(c), 3*ldc+4) //nolint:gosec // a tile of four rows
	for i := range 4 {
		for j := range 4 {
			if add {
				out[i*ldc+j] += s[i][j]
			} else {
				out[i*ldc+j] = s[i][j]
			}
		}
	}
}
