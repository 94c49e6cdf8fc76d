// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tmath is arithmetic on tensors with torch's rules: broadcasting, type promotion, what happens to NaN, and which
// types an operation knows. It records nothing; package autograd puts a tape on top of it.
//
// Integers are computed as int64 and wrap when they are stored, halves as float32, complex numbers as complex128. Sums of
// floats are accumulated in float64. Results are new, dense tensors unless a function says that it returns a view.
package tmath
