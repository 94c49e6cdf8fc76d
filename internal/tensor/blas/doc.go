// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package blas multiplies matrices and runs the loops over long vectors that training spends its time in.
//
// A product is computed in blocks that fit the caches. Each block of both operands is first copied into panels in the
// order in which the innermost kernel reads them, so any layout of the operands (row-major, transposed, strided) costs
// the same there. The kernel multiplies one panel of each operand into a tile of the result that stays in registers.
// There is a kernel for AVX-512, one for AVX2 with FMA, and a portable one; they share the outer loops. Large products
// are split over GOMAXPROCS goroutines.
package blas
