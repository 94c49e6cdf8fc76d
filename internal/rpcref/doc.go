// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcref drives the reference machine (internal/rrefcore) of an RPC worker. [Refs] owns the machine under one mutex
// and performs its effects outside of it: it sends the control stream to Go workers and PyTorch's control messages to
// PyTorch's, keeps the values of own objects and the handles of others', and forks references as messages carry them.
//
// A call passes it in this order: [Refs.Encoder] meets the references in the arguments, [Refs.FlushNow] sends what must
// precede them, [Refs.Decoding] makes the receiver's, [Decoding.Confirmed] waits until their owners know of them. A message
// that was not sent is [Refs.Undecoded], one that may not have arrived [Refs.Undelivered].
package rpcref
