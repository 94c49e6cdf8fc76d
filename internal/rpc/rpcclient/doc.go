// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcclient sends the requests of an RPC worker and waits for their answers. An [Outgoing] says where a request
// is sent and how it is built, for a Go worker or a PyTorch one. [Caller.Exchange] sends it and waits, [Caller.Async] calls
// back, [Caller.AsyncRetried] sends it again when its link is lost. All end when their context does or the worker's
// timeout expires, and release the references that did not arrive.
//
// It does not interpret requests or answers.
package rpcclient
