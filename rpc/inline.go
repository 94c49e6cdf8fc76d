// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/cohortwire"
)

const (
	// inlineLimit is how long a handler may hold up the goroutine that reads its link before another one takes over; it
	// may be found up to as much later.
	inlineLimit = 500 * time.Microsecond
	// briefLimit is up to what time handlers run one after the other while further requests wait: about what it costs to
	// give one to another goroutine.
	briefLimit = 10 * time.Microsecond
)

// inline lets handlers run in the goroutine that reads a link, which saves a hand-off. A handler that waits for a call of
// its own hands the reading over first; one that takes long for another reason is found by the guard.
type inline struct {
	link  *cohortwire.Link
	cost  atomic.Int64 // nanoseconds that recent handlers took: the longest, fading
	guard *time.Timer
	armed atomic.Bool
	seen  uint64        // the turn at the guard's last look
	inner atomic.Uint64 // the last turn that came to a handler
}

func newInline(l *cohortwire.Link) *inline {
	in := &inline{link: l}
	in.guard = time.AfterFunc(time.Hour, in.look)
	in.guard.Stop()
	return in
}

// brief reports whether handlers take so little time that it is not worth to run them side by side.
func (in *inline) brief() bool { return in.cost.Load() <= int64(briefLimit) }

// took notes how long a handler was under way.
func (in *inline) took(d time.Duration) {
	was := in.cost.Load()
	if now := max(int64(d), was-was/16-1); now != was {
		in.cost.Store(max(now, 0)) // a note that gets lost does not matter
	}
}

// run runs a request in the reading goroutine.
func (in *inline) run(a *Agent, r *request) {
	r.place.link, r.place.turn = in.link, in.link.Turn()
	in.watch()
	a.runCall(r)
}

// do runs fn in the reading goroutine.
func (in *inline) do(fn func()) {
	in.watch()
	fn()
}

// watch sets the guard, unless it is.
func (in *inline) watch() {
	in.inner.Store(in.link.Turn())
	if !in.armed.Load() && in.armed.CompareAndSwap(false, true) {
		in.guard.Reset(inlineLimit)
	}
}

// look is the guard: it hands over the reading when the handler that ran at the last look still does, and looks again as
// long as there is traffic. One timer for all handlers costs nothing per handler.
func (in *inline) look() {
	turn := in.link.Turn()
	if turn == in.seen && turn%2 == 1 && turn != in.inner.Load() {
		in.guard.Reset(inlineLimit) // not in a handler: what the control stream says must be heard before the next frame
		return
	}
	if turn == in.seen {
		in.link.Handover(turn) // does nothing between two handlers
		in.armed.Store(false)
		if in.link.Turn() == turn || !in.armed.CompareAndSwap(false, true) {
			return // no handler began since, or it has set the guard
		}
		turn = in.link.Turn()
	}
	in.seen = turn
	in.guard.Reset(inlineLimit)
}
