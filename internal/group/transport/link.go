// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package transport is the interface between algorithms and wires: a mesh of ranks that exchange messages.
//
// An algorithm posts sends and receives and waits for them; a mesh (gloo's wire, the native TCP wire, an in-memory
// network) moves the bytes. Messages match first-in first-out per (sender, receiver, slot); slots are independent.
package transport

import "context"

// AnyPeer as the Peer of a receive takes the first message on its slot from any of Op.From.
const AnyPeer = -1

// Op is one posted send or receive. The caller owns it, may embed it in longer-lived state and may reuse it once it is
// complete; a mesh never allocates for it. Buf belongs to the mesh from the post to the completion.
type Op struct {
	Peer int    // the other rank, or AnyPeer
	Slot uint64 // what the message is matched by
	Buf  []byte // data to send, or room to receive
	From []int  // with AnyPeer: the ranks that may send; empty means all others

	Set *Set // ops that stand or fall together; may be nil

	N      int // bytes received, at most len(Buf); a shorter message leaves the rest untouched
	Source int // the rank that sent, after a receive completed

	// State belongs to the mesh.
	State OpState
}

// OpState is the mesh's part of an Op.
type OpState struct {
	Done chan struct{} // made once, signalled (not closed) at completion; capacity 1
	Err  error
	Next *Op // intrusive list in the mesh's queues
	Flag uint32
	Aux  uint64

	Parts []Op // of an op that is moved in parts, see Divide
	whole *Op  // of a part
}

// Mesh connects the ranks of one group. Posting never blocks. All methods are safe for concurrent use.
type Mesh interface {
	Rank() int
	Size() int
	// Send posts op.Buf to op.Peer. It is complete when the buffer may be reused.
	Send(op *Op)
	// Recv posts room for a message from op.Peer. A message that is longer than the room is an error, never an overflow.
	Recv(op *Op)
	// Wait returns when op is complete, with its error. The waiting goroutine may do the mesh's work meanwhile. When ctx
	// ends first, Wait returns the context's error and the op goes on: the caller must Cancel it, Wait again, or Fail the mesh.
	Wait(ctx context.Context, op *Op) error
	// Cancel withdraws an op that no peer has matched yet and reports whether it did; the op is then complete with
	// cohort.Aborted.
	Cancel(op *Op) bool
	// Fail ends every pending and later op with err. The first call wins.
	Fail(err error)
	// Close releases connections and joins goroutines; pending ops end with cohort.Closed. It is idempotent.
	Close() error
}
