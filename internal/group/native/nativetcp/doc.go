// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package nativetcp is the native wire between Go ranks: a full mesh of TCP connections that implements link.Mesh.
//
// # Matching
//
// Small messages are sent eagerly. A receiver holds those without a matching receive, up to a window per peer. The sender
// counts its credit, and asks first (Request, Ready, Data) if the message is large or the credit is used up. In
// collectives whose sizes all ranks know, a receiver sends Ready when it posts its buffer, so that large messages need no
// request. Every message of a collective carries the call, and a rank that called something else fails the group.
//
// # Progress
//
// A connection has no goroutine. A goroutine that waits for an operation drives the mesh: it reads all sockets,
// completes operations of others on the way, and passes the role on when its own operation is complete. While no goroutine
// waits, one goroutine per mesh (the keeper) parks in the runtime's poller; it also sends the heartbeats. Sockets never
// block: posting an operation writes as much as the kernel accepts, and the driver writes the rest.
//
// A mesh can be one of several of the same ranks, see package lanes. Then another goroutine drives it instead of those who wait.
//
// The mutex of the mesh guards everything; only non-blocking system calls are made under it.
package nativetcp
