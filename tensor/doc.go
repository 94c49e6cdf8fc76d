// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensor is the dense array that groups reduce and agents send: element type, shape, strides and storage.
//
// A tensor is a view of a [Storage]. Go slices become tensors and come back without a copy:
//
//	t, err := tensor.From(weights, 2, 3)      // weights is a []float32; both see the same memory
//	data, err := tensor.Data[float32](t)      // the same memory again
//
// Storage lives on the heap, in a [Pool], or in memory that several processes share; the latter two are given back with
// Release. Views (Narrow, Select, Transpose, View, ...) share the storage and check their bounds; geometry that came from a
// peer goes through [FromStorage], which trusts nothing.
//
//	PyTorch                     here
//	torch.zeros, torch.full     New, Full
//	torch.tensor                Of
//	torch.frombuffer, numpy()   From, Data
//	t.view, t.reshape           View, Reshape
//	t[i], t[a:b:c], t.T         Select, Slice, Transpose
//	t.contiguous, t.clone       Contiguous, Clone
//	torch.equal, torch.allclose Equal, AllClose
//	repr(t)                     String, the same text
//
// Halves have Go types of their own, [F16] and [BF16], with conversions that round to nearest even.
//
// Reading a tensor is safe for concurrent use; writing is the caller's to order. Errors are *dist.Error.
package tensor
