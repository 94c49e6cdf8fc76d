// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shmring

import "math/bits"

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
