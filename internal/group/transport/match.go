// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"math/bits"

	"github.com/cohort-dist/cohort"
)

// List is a first-in first-out list of ops, linked through the ops themselves, so that queueing takes no memory. An op is
// in one list at a time. The zero value is empty.
type List struct {
	Head, Tail *Op
	Len        int
}

// Push appends op.
func (l *List) Push(op *Op) {
	op.State.Next = nil
	if l.Tail == nil {
		l.Head = op
	} else {
		l.Tail.State.Next = op
	}
	l.Tail = op
	l.Len++
}

// Pop takes the oldest op out; nil when there is none.
func (l *List) Pop() *Op {
	op := l.Head
	if op != nil {
		l.Remove(op)
	}
	return op
}

// Remove takes op out and reports whether it was there.
func (l *List) Remove(op *Op) bool {
	var before *Op
	for at := l.Head; at != nil; before, at = at, at.State.Next {
		if at != op {
			continue
		}
		if before == nil {
			l.Head = op.State.Next
		} else {
			before.State.Next = op.State.Next
		}
		if l.Tail == op {
			l.Tail = before
		}
		op.State.Next = nil
		l.Len--
		return true
	}
	return false
}

// Index returns the position of op, or -1.
func (l *List) Index(op *Op) int {
	i := 0
	for at := l.Head; at != nil; at = at.State.Next {
		if at == op {
			return i
		}
		i++
	}
	return -1
}

// First returns the oldest op that fits, or nil.
func (l *List) First(fits func(*Op) bool) *Op {
	for op := l.Head; op != nil; op = op.State.Next {
		if fits(op) {
			return op
		}
	}
	return nil
}

// OnSlot returns the oldest op of a slot, or nil.
func (l *List) OnSlot(slot uint64) *Op {
	for op := l.Head; op != nil; op = op.State.Next {
		if op.Slot == slot {
			return op
		}
	}
	return nil
}

// Replace puts with in the place of op, which must be in the list.
func (l *List) Replace(op, with *Op) {
	with.State.Next = op.State.Next
	if l.Head == op {
		l.Head = with
	} else {
		at := l.Head
		for at.State.Next != op {
			at = at.State.Next
		}
		at.State.Next = with
	}
	if l.Tail == op {
		l.Tail = with
	}
	op.State.Next = nil
}

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

// Early is a message that came before its receive: with its bytes, or the announcement of one whose sender waits for room. T is what
// a mesh knows about it beside that.
type Early[T any] struct {
	Slot      uint64
	Total     uint64 // the length of the message
	Announced bool   // not here
	Data      []byte // of a message that is here
	Note      T

	Next  *Early[T] // in its inbox
	order uint64    // among all early messages of the mesh
}

// Before tells which of two messages came first, from whichever rank.
func (e *Early[T]) Before(other *Early[T]) bool { return e.order < other.order }

// Inbox holds the early messages of one rank in the order in which they came. The zero value is an empty one.
type Inbox[T any] struct {
	Head *Early[T] // the oldest
	tail *Early[T]
	// Announced is the number of messages that are not here.
	Announced int
}

// Add takes in the newest message.
func (b *Inbox[T]) Add(e *Early[T]) {
	e.Next = nil
	if b.tail == nil {
		b.Head = e
	} else {
		b.tail.Next = e
	}
	b.tail = e
	b.count(e, 1)
}

func (b *Inbox[T]) count(e *Early[T], n int) {
	if e.Announced {
		b.Announced += n
	}
}

// First returns the oldest message on a slot, or nil.
func (b *Inbox[T]) First(slot uint64) *Early[T] {
	for e := b.Head; e != nil; e = e.Next {
		if e.Slot == slot {
			return e
		}
	}
	return nil
}

// Remove takes out a message, if it is there.
func (b *Inbox[T]) Remove(e *Early[T]) {
	var before *Early[T]
	for at := b.Head; at != nil; before, at = at, at.Next {
		if at != e {
			continue
		}
		if before == nil {
			b.Head = e.Next
		} else {
			before.Next = e.Next
		}
		if b.tail == e {
			b.tail = before
		}
		e.Next = nil
		b.count(e, -1)
		return
	}
}

const (
	smallestRoom = 9  // 512 bytes
	largestSpare = 15 // 32 KiB
	maxSpare     = 64 // of each size
)

// roomFor is the memory that an early message of n bytes takes: a power of two, so that it can be used again for another.
func roomFor(n int) int {
	if n == 0 {
		return 0
	}
	return 1 << max(bits.Len(uint(n-1)), smallestRoom)
}

// EarlyPool makes early messages for the inboxes of a mesh and uses their memory again.
type EarlyPool[T any] struct {
	order uint64
	free  *Early[T] // without memory for bytes
	rooms [largestSpare + 1][][]byte
}

// New returns a message with room for n bytes, which is the latest.
func (s *EarlyPool[T]) New(slot uint64, n int) *Early[T] {
	e := s.free
	if e != nil {
		s.free = e.Next
	} else {
		e = new(Early[T])
	}
	s.order++
	*e = Early[T]{Slot: slot, Total: uint64(n), order: s.order} //nolint:gosec // a length
	if n > 0 {
		e.Data = s.room(roomFor(n))[:n]
	}
	return e
}

func (s *EarlyPool[T]) room(size int) []byte {
	if class := bits.Len(uint(size)) - 1; class <= largestSpare {
		if spare := s.rooms[class]; len(spare) > 0 {
			s.rooms[class] = spare[:len(spare)-1]
			return spare[len(spare)-1]
		}
	}
	return make([]byte, size)
}

// Recycle takes back a message that is in no inbox and whose bytes are not needed any more.
func (s *EarlyPool[T]) Recycle(e *Early[T]) {
	if size := cap(e.Data); size > 0 {
		if class := bits.Len(uint(size)) - 1; class <= largestSpare && len(s.rooms[class]) < maxSpare {
			s.rooms[class] = append(s.rooms[class], e.Data[:size])
		}
	}
	*e = Early[T]{Next: s.free}
	s.free = e
}
