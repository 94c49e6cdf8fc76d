// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcslots decides where the handlers of an RPC worker run: which of them get one of the slots of a
// [Limiter], how long a handler may stay in the goroutine that read its request ([Inline]), and when its context ends
// ([Context]).
//
// Of requests it knows only their callers, and of connections only how to let another goroutine continue reading.
package rpcslots
