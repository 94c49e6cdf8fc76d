// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcplace is where the handlers of an RPC worker run: who gets one of the places that a [Limiter] has, how long a
// handler may stay in the goroutine that has read its request ([Inline]), and when its context ends ([Context]).
//
// It knows nothing of requests but who sends them, and nothing of connections but how another goroutine reads on.
package rpcplace
