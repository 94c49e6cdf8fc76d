// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensor is the dense array that groups reduce and agents send: element type, shape, strides and storage.
//
// A tensor is a view of a [Storage]. Go slices become tensors and come back without a copy:
//
//	t, err := tensor.From(weights, 2, 3)      // weights is a []float32; both see the same memory
//	data, err := tensor.Data[float32](t)      // the same memory again
//
// Storage lives on the heap, in a [Pool], or in memory that several processes share; the latter two are returned with
// Release. Views (Narrow, Select, Transpose, View, ...) share the storage and check their bounds. [FromStorage] validates
// all of its arguments, so it can be given a shape and strides that came from a peer.
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
// The half-precision types have their own Go types, [F16] and [BF16], with conversions that round to nearest even.
//
// Reading a tensor is safe for concurrent use; writes must be synchronised by the caller. Errors are *cohort.Error.
package tensor
