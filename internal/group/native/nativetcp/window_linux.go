// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import "github.com/cohort-dist/cohort/internal/util/invariants"

// window bounds the eager messages of a connection that no receive has taken, in both directions. Who sends one pays for it
// with credit, and gets that back when the other rank has taken the message.
type window struct {
	theirs int // eager bytes that the peer holds at most
	credit int // of them, those that are left
	owed   int // credit to give back
	used   int // eager bytes that arrived and whose credit was not given back
}

// spend pays for n bytes to be sent, if there is credit for them.
func (w *window) spend(n int) bool {
	if w.credit < n {
		return false
	}
	w.credit -= n
	return true
}

// refund adds credit that the peer gives back. It returns false if that is more than its window has.
func (w *window) refund(n int) bool {
	w.credit += n
	return w.credit <= w.theirs
}

// take notes n bytes that arrived. It returns false if that is more than the own window, of size, takes.
func (w *window) take(n, size int) bool {
	w.used += n
	return w.used <= size
}

// payBack returns the credit that goes back to the peer with a frame.
func (w *window) payBack() uint32 {
	n := w.owed
	w.used -= n
	w.owed = 0
	if invariants.Enabled {
		invariants.Check(w.used >= 0, "a peer gets back no more credit than it used")
	}
	return uint32(n) //nolint:gosec // bounded by the window
}

// keep takes back a payment with a frame that was not sent.
func (w *window) keep(n uint32) {
	w.used += int(n)
	w.owed += int(n)
}
