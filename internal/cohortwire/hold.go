// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import "time"

// Every write wakes the peer. A request that nobody waits for, such as the creation of an object, is often followed at once
// by one that somebody does wait for, the fetch of its value. When that has been so for a while, and the reading is lent,
// the first is held back and leaves in the write of the second. Whatever else is sent takes it along. If nothing is, the
// guard gives the reading back at its next look, and the reading goroutine writes before it waits.

const (
	// holdAfter is the number of requests with another one right behind them after which the next is held back.
	holdAfter = 16
	// holdGap is how soon that one has to follow.
	holdGap = 50 * time.Microsecond
	// holdLate is how long one may be held back when the guard looks, holdPenalty how many pairs more it then takes until
	// the next one is.
	holdLate    = 10 * holdGap
	holdPenalty = 8 * holdAfter
)

// holding is what became of the requests with Hold. Guarded by Link.wmu.
type holding struct {
	last time.Time // when the last request was sent, if it has Hold; else zero
	// pairs counts those with another one right behind them, up to twice holdAfter. One without takes holdAfter away: a
	// pause of the scheduler is forgiven, a program that does something else is not.
	pairs int
}

// note takes a request into account that is about to be sent. It reports whether it is to be held back.
func (h *holding) note(hold bool, now time.Time) bool {
	switch {
	case h.last.IsZero():
	case hold || now.Sub(h.last) > holdGap:
		h.pairs = min(h.pairs, max(h.pairs-holdAfter, 0))
	default:
		h.pairs = min(h.pairs+1, 2*holdAfter)
	}
	h.last = time.Time{}
	if hold {
		h.last = now
	}
	return hold && h.pairs >= holdAfter
}

// overdue reports whether a request has been held back for too long.
func (h *holding) overdue(now time.Time) bool {
	if h.last.IsZero() || h.pairs < holdAfter || now.Sub(h.last) <= holdLate {
		return false
	}
	h.last, h.pairs = time.Time{}, -holdPenalty
	return true
}

// overdue reports whether the guard has to see to a request that is held back.
func (l *Link) overdue() bool {
	if !l.kept.Load() {
		return false
	}
	l.wmu.Lock()
	defer l.wmu.Unlock()
	return !l.wq.empty() && !l.wq.writing && l.holding.overdue(time.Now())
}

// toHold reports whether a frame is one to be held back. It is called with wmu held.
func (l *Link) toHold(f *Frame) bool {
	if f.Calm || !f.isRequest() {
		return f.Calm
	}
	if !f.Hold && l.holding.last.IsZero() {
		return false // nothing to learn, and the clock costs
	}
	return l.holding.note(f.Hold, time.Now())
}

// hold leaves what is queued to the next write, if the reading is lent. It is called with wmu held, and releases it if it
// reports true.
func (l *Link) hold() bool {
	if l.lend.state.Load() != isLent {
		return false
	}
	l.kept.Store(true)
	if l.lend.state.Load() != isLent { // whoever reads since then may have looked before
		return false
	}
	l.wmu.Unlock()
	return true
}

// notHeld says that a request with Hold was written at once, which may have taken a while. Nobody reads its answer.
func (l *Link) notHeld() {
	l.wmu.Lock()
	if !l.holding.last.IsZero() {
		l.holding.last = time.Now()
	}
	l.wmu.Unlock()
	l.Recall()
}
