// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package blas

import "unsafe"

// portable is the kernel for every processor.
func portable[T Float]() kernel[T] {
	return kernel[T]{name: "portable", mr: 4, nr: 4, run: tile4x4[T]}
}

func tile4x4[T Float](k int, a, b, c unsafe.Pointer, rowA, stepA, stepB, rowC int, add bool) {
	var s [4][4]T
	x, y := unsafe.Slice((*T)(a), (k-1)*stepA+3*rowA+1), unsafe.Slice((*T)(b), (k-1)*stepB+4) //nolint:gosec // panels of this length
	for p := range k {
		b0, b1, b2, b3 := y[p*stepB], y[p*stepB+1], y[p*stepB+2], y[p*stepB+3]
		for i := range 4 {
			v := x[p*stepA+i*rowA]
			s[i][0] += v * b0
			s[i][1] += v * b1
			s[i][2] += v * b2
			s[i][3] += v * b3
		}
	}
	out := unsafe.Slice((*T)(c), 3*rowC+4) //nolint:gosec // a tile of four rows
	for i := range 4 {
		for j := range 4 {
			if add {
				out[i*rowC+j] += s[i][j]
			} else {
				out[i*rowC+j] = s[i][j]
			}
		}
	}
}
