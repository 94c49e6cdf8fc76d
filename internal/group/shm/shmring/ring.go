// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package shmring is a queue of frames in memory that two processes share: one writes, the other reads, and neither trusts the other.
package shmring

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

const line = 2 * 64 // bytes of a cache line, twice: the prefetcher fetches lines in pairs

// Control is the shared part of a ring from one rank to another beside its frames. Each side writes its own cache line.
type Control struct {
	head  atomic.Uint64 // bytes written, by the sender
	_     [line - 8]byte
	tail  atomic.Uint64 // bytes consumed, by the receiver
	taken atomic.Uint64 // of the window, what receives have taken, by the receiver
	full  atomic.Uint32 // set by a sender that waits for room
	_     [line - 20]byte
}

// ControlSize is the room that a Control takes.
const ControlSize = int(unsafe.Sizeof(Control{}))

// Frame is the header of a message or a part of one; the payload follows. Frames are multiples of Unit and never wrap around
// the end of the ring.
type Frame struct {
	Kind  uint32
	Size  uint32 // payload bytes in this frame
	Slot  uint64
	ID    uint64 // of the message, counted by its sender
	Total uint64 // bytes of the whole message
}

// Unit is the size of a frame without payload.
const Unit = int(unsafe.Sizeof(Frame{})) // 32

// The kinds of frames.
const (
	skip   = iota // fills the end of the ring
	Eager         // a whole message
	Offer         // a message is ready: Slot, ID, Total
	Grant         // answer to an offer: send it
	Refuse        // answer to an offer: no room for it; Total is the room
	Data          // a part of a granted message; Total is LastPart in the last one
)

// LastPart is the Total of the last part of a message.
const LastPart = 1

// Ring is one side's view of a ring. Its positions are private copies, so that a broken peer cannot move them.
type Ring struct {
	control *Control
	data    []byte // a power of two
	pos     uint64 // what this side has written or consumed
	other   uint64 // the other side's position when last read
	window  window
}

// New returns a view of a ring in which nothing was sent yet.
func New(control *Control, data []byte) Ring { return Ring{control: control, data: data} }

// Pos counts the bytes that this side has written or consumed.
func (r *Ring) Pos() uint64 { return r.pos }

// Len is the room of an empty ring.
func (r *Ring) Len() uint64 { return uint64(len(r.data)) }

// room is the bytes that can be written now.
func (r *Ring) room(need int) int {
	if n := len(r.data) - int(r.pos-r.other); n >= need { //nolint:gosec // at most the ring
		return n
	}
	t := r.control.tail.Load()
	if t-r.other <= r.pos-r.other { // consumed no more than was written
		r.other = t
	}
	return len(r.data) - int(r.pos-r.other) //nolint:gosec // at most the ring
}

func space(payload int) int { return (payload + 2*Unit - 1) / Unit * Unit }

// Put writes a frame and reports whether there was room for it. The receiver sees it after Publish.
func (r *Ring) Put(f Frame, payload []byte) bool {
	f.Size = uint32(len(payload)) //nolint:gosec // far smaller
	need := space(len(payload))
	at := int(r.pos & uint64(len(r.data)-1)) //nolint:gosec // below the length
	if left := len(r.data) - at; left < need {
		if r.room(left+need) < left+need {
			return false
		}
		*(*Frame)(unsafe.Pointer(&r.data[at])) = Frame{Kind: skip, Size: uint32(left - Unit)} //nolint:gosec // below the length
		r.pos += uint64(left)                                                                 //nolint:gosec // positive
		at = 0
	} else if r.room(need) < need {
		return false
	}
	*(*Frame)(unsafe.Pointer(&r.data[at])) = f //nolint:gosec // a place in the mapped segment
	copy(r.data[at+Unit:], payload)
	r.pos += uint64(need) //nolint:gosec // positive
	if f.Kind == Eager {
		r.window.used += cost(len(payload))
	}
	return true
}

// Publish shows the receiver what was put.
func (r *Ring) Publish() { r.control.head.Store(r.pos) }

// Want asks the receiver for a wake-up when it has made room. It may have made some before it saw that: the caller tries again.
func (r *Ring) Want() { r.control.full.Store(1) }

// Peek returns the next frame and its payload, which stay valid until Consume. ok is false when there is none; broken
// when the ring holds what no sender of ours writes.
func (r *Ring) Peek() (f Frame, payload []byte, ok, broken bool) {
	for {
		if r.pos == r.other {
			r.other = r.control.head.Load()
			if r.pos == r.other {
				return f, nil, false, false
			}
		}
		if r.other-r.pos > uint64(len(r.data)) || (r.other-r.pos)%uint64(Unit) != 0 {
			return f, nil, false, true
		}
		at := int(r.pos & uint64(len(r.data)-1)) //nolint:gosec // below the length
		//nolint:gosec // a place in the mapped segment
		f = *(*Frame)(unsafe.Pointer(&r.data[at]))
		need := uint64(space(int(f.Size)))                                                      //nolint:gosec // a size
		if f.Size > uint32(len(r.data)) || need > r.other-r.pos || at+int(need) > len(r.data) { //nolint:gosec // lengths
			return f, nil, false, true
		}
		if f.Kind == Eager && !r.window.fits(int(f.Size)) {
			return f, nil, false, true
		}
		if f.Kind != skip {
			return f, r.data[at+Unit : at+Unit+int(f.Size)], true, false
		}
		r.Consume(f)
	}
}

// Consume frees the frame that Peek returned. The sender sees it after Release.
func (r *Ring) Consume(f Frame) {
	r.pos += uint64(space(int(f.Size))) //nolint:gosec // a size
	if f.Kind == Eager {
		r.window.used += cost(int(f.Size))
	}
}

// Release shows the sender what was consumed and reports whether it waits for room.
func (r *Ring) Release() (wanted bool) {
	r.control.tail.Store(r.pos)
	return r.control.full.Load() != 0 && r.control.full.Swap(0) != 0
}

// The window of a ring bounds what its receiver keeps of whole messages that no receive has taken. Each of them takes a part of the
// window, which the sender has again once a receive has taken the message. A sender whose window is used up offers its messages
// instead, so the receiver can always continue reading: nothing in a ring waits behind a message without a receive.
const (
	// WindowSize is the memory for such messages, and WindowMessages how many there are at most.
	WindowSize     = 16 << 20
	WindowMessages = 4096

	// giveBack is how much the receiver gives back at a time: seldom, because then the sender has to fetch a cache line.
	giveBack = WindowSize / 8
)

// window is one side's view of it. What a side has used is counted from the beginning, like the positions in the ring.
type window struct {
	used  uint64 // by messages that this side has put or consumed
	taken uint64 // of that, what receives have taken; only the receiver has it
	free  uint64 // of that, what the receiver has given back, as far as this side knows
}

// cost is what a message of n bytes takes of the window: the memory for it, which is a power of two.
func cost(n int) uint64 {
	const least = WindowSize / WindowMessages
	if n <= least {
		return least
	}
	return 1 << bits.Len(uint(n-1))
}

// fits reports whether there is room for a message of n bytes.
func (w *window) fits(n int) bool { return w.used-w.free+cost(n) <= WindowSize }

// Affords reports whether the window has room for a message of n bytes. Only an Eager frame with one that it affords may be put.
func (r *Ring) Affords(n int) bool {
	w := &r.window
	if w.fits(n) {
		return true
	}
	if t := r.control.taken.Load(); t-w.free <= w.used-w.free { // no more than was used
		w.free = t
	}
	return w.fits(n)
}

// Taken notes that a receive has taken an Eager frame's message of n bytes.
func (r *Ring) Taken(n int) {
	w := &r.window
	if w.taken += cost(n); w.taken-w.free >= giveBack {
		w.free = w.taken
		r.control.taken.Store(w.free)
	}
}
