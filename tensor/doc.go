// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensor is the dense array that groups reduce and agents send: element type, shape, strides and storage.
package tensor
