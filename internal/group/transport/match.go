// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import "github.com/cohort-dist/cohort"

// What follows is how the meshes between Go ranks match messages and receives. gloo's wire has rules of its own: there a receiver
// says first that it has room, see package gloo/match.

// TakeFor takes out the receive that a message of peer on slot belongs to: the oldest of recvs, which are from this peer, else the
// oldest of anyRecvs, which are from any rank, that accepts it. It returns nil if there is none.
func TakeFor(recvs, anyRecvs *List, slot uint64, peer int) *Op {
	op, from := recvs.OnSlot(slot), recvs
	for o := anyRecvs.Head; op == nil && o != nil; o = o.State.Next {
		if o.Slot == slot && o.Accepts(peer) {
			op, from = o, anyRecvs
		}
	}
	if op != nil {
		from.Remove(op)
		op.Source = peer
	}
	return op
}

// EndOrphans completes the receives from any rank that no rank is left for.
func EndOrphans(anyRecvs *List, alive func(rank int) bool, ranks int, end func(op *Op)) {
	for op := anyRecvs.Head; op != nil; {
		next, left := op.State.Next, false
		for rank := range ranks {
			left = left || op.Accepts(rank) && alive(rank)
		}
		if !left {
			anyRecvs.Remove(op)
			end(op)
		}
		op = next
	}
}

// TooLong is the error of a receive whose message, from rank at where, is longer than the room for it.
func TooLong(rank int, where string, length uint64, room int) error {
	e := cohort.Newf("group: receive", cohort.Mismatch, "rank %d sent %d bytes, this receive has room for %d", rank, length, room)
	e.Rank, e.Peer = cohort.Rank(rank), where
	return e
}

// NoRoom is the error of a send whose message is longer than the room that rank, at where, has for it.
func NoRoom(rank int, where string, length int, room uint64) error {
	e := cohort.Newf("group: send", cohort.Mismatch, "rank %d has room for %d bytes, the message has %d", rank, room, length)
	e.Rank, e.Peer = cohort.Rank(rank), where
	return e
}
