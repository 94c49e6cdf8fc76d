// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcsession has the sessions of an RPC worker with the others: pipes as PyTorch's workers open them, and links
// among Go workers. It dials and accepts, knows which peers have proved their identity, finds the session for a request,
// writes it, delivers its answer, passes requests of others to the layer above ([Handler]), re-establishes lost links, and
// owns the goroutines for all this.
//
// [Links] are all sessions of a worker. A [Peer] is another worker, with or without a session. A [Conn] is one session.
// This package does not know what a request means, which references it carries or what it runs.
package rpcsession
