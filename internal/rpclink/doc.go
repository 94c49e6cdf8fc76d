// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpclink has the sessions of an RPC worker with the others: pipes as PyTorch's workers open them, and links among Go
// workers. It dials and accepts, knows who has proved to be which worker, finds the session for a request, writes it,
// brings its answer back, hands requests of others to whoever is above ([Above]), makes lost links again and owns the
// goroutines of all this.
//
// From the top: [Links] are all sessions of a worker. A [Peer] is another worker, with or without a session. A [Conn] is one
// session. What a request means, which references it carries and what runs because of it is not decided here.
package rpclink
