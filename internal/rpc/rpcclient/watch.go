// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A request whose sender does not wait for the answer is given up when its context ends or its time is over. A timer
// and a callback on the context cost more than the rest of such a request, and most answers come at once. So a request is only noted at
// first, and gets both when it has waited for a moment.

// watchInterval is how often the noted requests are scanned. The end of a context is noticed up to two ticks late.
const watchInterval = 5 * time.Millisecond

// watched is a request that can be given up.
type watched interface {
	// bounds are the context that ends it, its deadline, which may be zero, and its name.
	bounds() (ctx context.Context, deadline time.Time, op string)
	// giveUp ends it, unless it has ended.
	giveUp(err error)
}

// watch gives a request up when its time is over.
type watch struct {
	k  *Caller
	of watched

	prev, next *watch // guarded by watchList.mu, as the two below
	noted      bool
	turn       uint64

	mu struct {
		sync.Mutex
		stopped bool
		timer   *time.Timer
		after   func() bool
	}
}

// start begins the watch. It may have been stopped before.
func (w *watch) start() {
	ctx, deadline, _ := w.of.bounds()
	if ctx.Err() != nil || !deadline.IsZero() && time.Until(deadline) < 2*watchInterval {
		w.arm()
		return
	}
	w.k.watchList.note(w)
}

// arm sets the timer and the callback on the context.
func (w *watch) arm() {
	ctx, deadline, op := w.of.bounds()
	failpoint.At("rpc.call.watch")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.stopped {
		return
	}
	if ctx.Done() != nil {
		w.mu.after = context.AfterFunc(ctx, func() { w.of.giveUp(cohort.FromContext(ctx, "rpc: "+op)) })
	}
	if _, has := ctx.Deadline(); !has && !deadline.IsZero() {
		limit := w.k.cfg.Timeout()
		w.mu.timer = time.AfterFunc(time.Until(deadline), func() { w.of.giveUp(timedOut(op, limit)) })
	}
}

// stop ends the watch.
func (w *watch) stop() {
	w.k.watchList.drop(w)
	failpoint.At("rpc.call.unwatch")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.stopped = true
	if w.mu.timer != nil {
		w.mu.timer.Stop()
	}
	if w.mu.after != nil {
		w.mu.after()
	}
}

// watchList has the requests that are noted, the oldest first.
type watchList struct {
	mu struct {
		sync.Mutex
		first, last *watch
		turn        uint64 // grows with every scan
		timer       *time.Timer
		armed       bool
	}
}

func (v *watchList) note(w *watch) {
	failpoint.At("rpc.watch.note")
	v.mu.Lock()
	defer v.mu.Unlock()
	w.noted, w.turn, w.prev = true, v.mu.turn, v.mu.last
	if v.mu.last != nil {
		v.mu.last.next = w
	} else {
		v.mu.first = w
	}
	v.mu.last = w
	switch {
	case v.mu.armed:
	case v.mu.timer == nil:
		v.mu.timer = time.AfterFunc(watchInterval, v.scan)
	default:
		v.mu.timer.Reset(watchInterval)
	}
	v.mu.armed = true
}

func (v *watchList) drop(w *watch) {
	failpoint.At("rpc.watch.drop")
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unlink(w)
}

// unlink takes a request off the list. Called with the lock.
func (v *watchList) unlink(w *watch) {
	if !w.noted {
		return
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		v.mu.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		v.mu.last = w.prev
	}
	w.noted, w.prev, w.next = false, nil, nil
}

// scan arms those that were noted before the last scan.
func (v *watchList) scan() {
	failpoint.At("rpc.watch.scan")
	v.mu.Lock()
	var old []*watch
	for w := v.mu.first; w != nil && w.turn < v.mu.turn; w = v.mu.first {
		v.unlink(w)
		old = append(old, w)
	}
	v.mu.turn++
	if v.mu.armed = v.mu.first != nil; v.mu.armed {
		v.mu.timer.Reset(watchInterval)
	}
	v.mu.Unlock()
	for _, w := range old {
		w.arm()
	}
}
