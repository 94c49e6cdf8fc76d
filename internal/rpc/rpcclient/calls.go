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

// activeCalls counts the calls of this worker that wait for an answer. A shutdown closes the gate for a moment to take
// the count.
type activeCalls struct {
	mu struct {
		sync.Mutex
		n    int
		gate chan struct{} // not nil while closed
		zero chan struct{} // closed when n falls to zero; made on demand
	}
}

// Enter counts a call, when the gate is open.
func (c *activeCalls) Enter(ctx context.Context) error {
	failpoint.At("rpc.active.enter")
	c.mu.Lock()
	for c.mu.gate != nil {
		gate := c.mu.gate
		c.mu.Unlock()
		failpoint.At("rpc.active.gate")
		select {
		case <-gate:
		case <-ctx.Done():
			return cohort.FromContext(ctx, "rpc: call")
		}
		failpoint.At("rpc.active.again")
		c.mu.Lock()
	}
	c.mu.n++
	c.mu.Unlock()
	return nil
}

// TryEnter is Enter that does not wait: it reports false when the gate is closed.
func (c *activeCalls) TryEnter() bool {
	failpoint.At("rpc.active.try")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.gate != nil {
		return false
	}
	c.mu.n++
	return true
}

// Leave counts it off.
func (c *activeCalls) Leave() {
	failpoint.At("rpc.active.leave")
	c.mu.Lock()
	c.mu.n--
	if c.mu.n == 0 && c.mu.zero != nil {
		close(c.mu.zero)
		c.mu.zero = nil
	}
	c.mu.Unlock()
}

// Count returns how many there are.
func (c *activeCalls) Count() int {
	failpoint.At("rpc.active.count")
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.n
}

// Idle waits until no call is under way.
func (c *activeCalls) Idle(ctx context.Context) error {
	for {
		failpoint.At("rpc.active.idle")
		c.mu.Lock()
		if c.mu.n == 0 {
			c.mu.Unlock()
			return nil
		}
		if c.mu.zero == nil {
			c.mu.zero = make(chan struct{})
		}
		zero := c.mu.zero
		c.mu.Unlock()
		failpoint.At("rpc.active.wait")
		select {
		case <-zero:
		case <-ctx.Done():
			return cohort.FromContext(ctx, "rpc: shutdown")
		}
	}
}

// Freeze closes the gate and returns the count.
func (c *activeCalls) Freeze() int {
	failpoint.At("rpc.active.freeze")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.gate == nil {
		c.mu.gate = make(chan struct{})
	}
	return c.mu.n
}

// Thaw opens the gate.
func (c *activeCalls) Thaw() {
	failpoint.At("rpc.active.thaw")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.gate != nil {
		close(c.mu.gate)
		c.mu.gate = nil
	}
}

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
