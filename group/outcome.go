// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/tensor"
)

// outcome is how and when an operation ends, once, and who is notified of it.
type outcome struct {
	// err and ended are set before over, and read after it.
	over  atomic.Bool
	err   error
	ended time.Time
	begun time.Time // guarded by the mutex of the operation's group until then

	mu struct {
		sync.Mutex
		future  *cohort.Future[[]*tensor.Tensor]
		waiters waiters
	}
}

// waiters is who is notified of the end of an operation.
type waiters struct {
	done      chan struct{}
	promise   *cohort.Promise[[]*tensor.Tensor]
	callbacks []func(*Work)
}

// reset makes the outcome of a complete operation that of a new one. It is its owner's alone, so no mutex is needed.
func (o *outcome) reset() {
	o.err, o.ended, o.begun = nil, time.Time{}, time.Time{}
	o.mu.future, o.mu.waiters = nil, waiters{}
	o.over.Store(false)
}

// took is the time from the beginning to at.
func (o *outcome) took(at time.Time) time.Duration {
	if o.begun.IsZero() {
		return 0
	}
	return at.Sub(o.begun)
}

// done returns a channel that is closed at the end.
func (o *outcome) done() <-chan struct{} {
	failpoint.At("group.work.done")
	o.mu.Lock()
	defer o.mu.Unlock()
	a := &o.mu.waiters
	if a.done == nil {
		a.done = make(chan struct{})
		if o.over.Load() {
			close(a.done)
		}
	}
	return a.done
}

// notify gives those who want to see the operation a copy of it, now that it has ended.
func (a *waiters) notify(seen *Work) {
	if a.promise != nil {
		a.promise.Complete(seen.call.Outputs, seen.outcome.err)
	}
	if len(a.callbacks) > 0 {
		callBack(seen, a.callbacks...)
	}
}

// callBack runs callbacks in a goroutine of their own.
func callBack(seen *Work, callbacks ...func(*Work)) {
	p := cohort.NewPromise[*Work]()
	for _, f := range callbacks {
		p.Future().OnDone(func(w *Work, _ error) { f(w) })
	}
	p.Complete(seen, nil)
}

// watchLocked has the timer check the deadlines at a time that is earlier than any that it is set to.
func (g *Group) watchLocked(at time.Time) {
	if g.mu.sched.State() == opsched.Closed {
		return
	}
	g.mu.timerAt = at
	if g.mu.timer == nil {
		g.mu.timer = time.AfterFunc(time.Until(at), g.expire)
		return
	}
	g.mu.timer.Reset(time.Until(at))
}

// expire ends operations whose time is over. A collective takes the group with it.
func (g *Group) expire() {
	failpoint.At("group.expire")
	now := time.Now()
	var late *cohort.Error
	var messages []*Work
	g.mu.Lock()
	if g.mu.sched.State() == opsched.Closed {
		g.mu.Unlock()
		return
	}
	g.mu.timerAt = time.Time{}
	next := time.Time{}
	over := func(w *Work) bool {
		at := w.submitted.deadline()
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
		return !at.After(now)
	}
	g.mu.sched.EachCollective(func(w *Work) {
		if over(w) && late == nil {
			late = cohort.Newf("group: "+w.op.String(), cohort.DeadlineExceeded,
				"operation %d of group %s did not complete within %v", w.seq, g.name, w.submitted.timeout)
		}
	})
	for _, it := range g.mu.sched.Messages() {
		switch w := it.Owner; {
		case !over(w):
		case !w.message.handed.Load(): // it can be withdrawn in a moment
			next = now.Add(time.Millisecond)
		case it.Hold():
			messages = append(messages, w)
		}
	}
	if !next.IsZero() {
		g.watchLocked(next)
	}
	g.expiring.Add(1)
	g.mu.Unlock()
	g.expireMessages(messages)
	if m, ok := g.mesh.(interface{ Err() error }); late != nil && (!ok || m.Err() == nil) { // else it has found that itself
		if m, ok := g.mesh.(interface{ Awaited() []int }); ok {
			if ranks := m.Awaited(); len(ranks) > 0 { // each of them may wait itself: none is blamed
				late.Detail += "; it waits for " + ranklist.Words(ranks)
			}
		}
		g.fail(late)
	}
}

// expireMessages ends messages that expire holds: only expire completes them, so no caller uses a Work again meanwhile. Close waits until
// they are let go; those who are notified of it may close the group.
func (g *Group) expireMessages(late []*Work) {
	var half *cohort.Error
	for _, w := range late {
		e := cohort.Newf("group: "+w.op.String(), cohort.DeadlineExceeded, "message %d of group %s did not complete within %v",
			w.seq, g.name, w.submitted.timeout)
		if w.message.Peer >= 0 {
			e.Rank = cohort.Rank(w.message.Peer)
		}
		if !w.message.withdraw(g.mesh, e) {
			half = e
		}
	}
	failpoint.At("group.expire.held")
	g.mu.Lock()
	for _, w := range late {
		w.item.LetGo()
	}
	ready := g.takeLocked(false)
	g.mu.Unlock()
	reports := make([]*report, len(ready))
	for i, w := range ready {
		reports[i] = g.settle(w, false)
	}
	g.expiring.Done()
	for _, about := range reports {
		g.publish(about)
	}
	if half != nil {
		g.fail(half)
		g.reapAll(false)
	}
}

// errNil is the error of every method of a nil group.
var errNil = cohort.New("group", cohort.InvalidArgument,
	"the group is nil: check the error of New, or of the function that should have made it")

// noArgs is what requests of a nil group depend on, until they are refused.
var noArgs = collective.Group{Size: 1}

// refused returns an operation that has failed.
func refused(err error) *Work { return new(Work).complete(err) }
