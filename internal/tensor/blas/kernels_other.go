// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package blas

func best[T Float]() kernel[T] { return portable[T]() }

func kernels[T Float]() []kernel[T] { return []kernel[T]{portable[T]()} }

func vectorAXPY(alpha float32, x, y []float32) int { return 0 }

func vectorAdd(dst, a, b []float32) int { return 0 }

func vectorMul(dst, a, b []float32) int { return 0 }
