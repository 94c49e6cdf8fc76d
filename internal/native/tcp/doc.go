// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package tcp is the native wire between Go ranks: a full mesh of TCP connections that implements link.Mesh.
//
// # Matching
//
// Small messages travel eagerly. A receiver holds those that nobody has asked for yet, up to a window per peer; the sender
// counts credit, and asks first (Request, Ready, Data) when its credit or the message does not allow more. In collectives
// whose sizes all ranks agree on, a receiver says Ready as soon as it posts its room, so that large messages need no
// question. Every message of a collective carries the call, and a rank that called something else fails the group.
//
// # Progress
//
// There is no goroutine per connection. Whoever waits for an operation drives the mesh: it reads all sockets, completes
// operations of others on the way, and passes the role on when its own operation is complete. While nobody waits, one
// goroutine per mesh (the keeper) parks in the runtime's poller; it also sends the heartbeats. Sockets never block:
// posting writes directly what the kernel takes, the driver writes the rest.
//
// The mutex of the mesh guards everything; only non-blocking system calls are made under it.
package tcp
