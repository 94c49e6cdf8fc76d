// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcslots

import (
	"sync/atomic"
	"time"
)

// Limits of what runs in a goroutine that reads.
const (
	// LinkGuard and PipeGuard are how long a handler may hold up the goroutine that reads its link or pipe before another
	// one takes over; it may be found up to as much later. PyTorch's calls take longer than ours, and on a pipe only
	// handlers run so that were short lately: there the guard checks less often, because a check wakes a thread.
	LinkGuard = 500 * time.Microsecond
	PipeGuard = 2 * time.Millisecond // see LinkGuard
	// shortLimit is up to what time handlers run in the goroutine that reads a pipe.
	shortLimit = 200 * time.Microsecond
	// briefLimit is up to what time handlers run one after the other while further requests wait: about what it costs to
	// give one to another goroutine.
	briefLimit = 10 * time.Microsecond
)

// Reader reads a session and calls the agent with what was read: a link, or the requests of a pipe. Turn numbers
// these calls, and Handover lets another goroutine read on during one.
type Reader interface {
	Turn() uint64
	Handover(turn uint64)
}

// Inline lets handlers run in the goroutine that reads, which saves a hand-off. A handler that waits for a call of
// its own hands the reading over first; one that takes long for another reason is found by the guard.
type Inline struct {
	Reader
	limit   time.Duration
	longest atomic.Int64 // nanoseconds that recent handlers took: the longest, fading
	mean    atomic.Int64 // and on average
	guard   *time.Timer
	armed   atomic.Bool
	seen    uint64        // the turn at the guard's last check
	inner   atomic.Uint64 // the last turn that reached a handler
}

// NewInline returns an Inline that lets handlers run in a reader's goroutine for up to limit.
func NewInline(r Reader, limit time.Duration) *Inline {
	in := &Inline{Reader: r, limit: limit}
	in.guard = time.AfterFunc(time.Hour, in.checkReader)
	in.guard.Stop()
	return in
}

// Brief reports whether handlers take so little time on average that it does not pay to run them concurrently, and none has lately
// held up the reader until the guard found it.
func (in *Inline) Brief() bool {
	return in.mean.Load() <= int64(briefLimit) && in.longest.Load() <= int64(in.limit)
}

// Short reports whether every handler can be expected to take little time.
func (in *Inline) Short() bool { return in.longest.Load() <= int64(shortLimit) }

// RecordDuration notes how long a handler was under way.
func (in *Inline) RecordDuration(d time.Duration) {
	was := in.longest.Load()
	if now := max(int64(d), was-was/16-1); now != was {
		in.longest.Store(max(now, 0)) // a lost update does not matter
	}
	was = in.mean.Load()
	in.mean.Store(was + (int64(min(d, in.limit))-was)/16) // beyond the limit another goroutine reads
}

// Do runs fn in the reading goroutine. If fn ends the goroutine, another one reads on.
func (in *Inline) Do(fn func()) {
	turn, returned := in.Turn(), false
	defer func() {
		if !returned {
			in.Handover(turn)
		}
	}()
	in.watch()
	fn()
	returned = true
}

// watch sets the guard, unless it is.
func (in *Inline) watch() {
	in.inner.Store(in.Turn())
	if !in.armed.Load() && in.armed.CompareAndSwap(false, true) {
		in.guard.Reset(in.limit)
	}
}

// checkReader is the guard: it hands over the reading when the handler that ran at the last check still does, and checks again as
// long as there is traffic. One timer for all handlers costs nothing per handler.
func (in *Inline) checkReader() {
	turn := in.Turn()
	if turn == in.seen && turn%2 == 1 && turn != in.inner.Load() {
		in.guard.Reset(in.limit) // not in a handler: a control frame must be handled before the next frame
		return
	}
	if turn == in.seen {
		in.Handover(turn) // does nothing between two handlers
		in.armed.Store(false)
		if in.Turn() == turn || !in.armed.CompareAndSwap(false, true) {
			return // no handler began since, or it has set the guard
		}
		turn = in.Turn()
	}
	in.seen = turn
	in.guard.Reset(in.limit)
}
