// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcserver answers the requests that arrive at an RPC worker, from others and from itself. A request is dispatched by
// its kind: a call waits for a slot, is decoded, run by the [Program] and answered; a creating call leaves its result here
// as an object; a fetch is answered when its object has a value; control messages of PyTorch workers go to the reference
// machine; the message types of an extension go to the extension. Every request gets one answer.
//
// It does not know which functions exist.
package rpcserver
