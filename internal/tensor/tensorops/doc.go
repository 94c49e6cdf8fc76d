// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensorops is arithmetic on tensors with torch's rules: broadcasting, type promotion, the treatment of NaN, and the
// types that each operation supports. It records nothing; package autograd adds the recording of gradients.
//
// Integers are computed as int64 and wrap when they are stored, half-precision types as float32, complex numbers as
// complex128. Sums of floats are accumulated in float64; those of float32 are infinite when a partial sum is too large for
// float32, as in torch. Results are new, dense tensors unless a function says that it returns a view.
package tensorops
