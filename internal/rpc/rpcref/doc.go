// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcref drives the reference machine (internal/rpc/rrefcore) of an RPC worker. [Refs] owns the machine under one
// mutex and carries out its effects outside of it: it sends the control stream to Go workers and PyTorch's control
// messages to PyTorch workers, keeps the values of this worker's objects and the handles to others' objects, and forks
// references when messages carry them.
//
// A call uses it in this order: [Refs.Encoder] collects the references in the arguments, [Refs.FlushNow] sends what must
// precede them, [Refs.Decoding] makes the receiver's references, and [Decoding.Confirmed] waits until their owners know
// of them. A message that was not sent is reported with [Refs.Undecoded], one that may not have arrived with
// [Refs.Undelivered].
package rpcref
