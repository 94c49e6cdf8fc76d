// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcwire is the form of RPC messages: what each type of torch.distributed.rpc's messages carries, how tensors
// are tabled, and how Go values become Python's and back. It does no I/O and keeps no state.
package rpcwire
