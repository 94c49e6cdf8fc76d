// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import "math/bits"

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
