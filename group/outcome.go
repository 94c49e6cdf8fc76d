// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/tensor"
)

// outcome is how and when an operation ends, once, and who hears of it.
type outcome struct {
	// err is set before completed, and read after it.
	completed atomic.Bool
	err       error

	mu struct {
		sync.Mutex
		begun, ended time.Time
		finished     bool
		future       *dist.Future[[]*tensor.Tensor]
		audience     audience
	}
}

// audience is who hears of the end of an operation.
type audience struct {
	done      chan struct{}
	promise   *dist.Promise[[]*tensor.Tensor]
	callbacks []func(*Work)
}

// over reports whether the operation has ended.
func (o *outcome) over() bool { return o.completed.Load() }

// reset makes the outcome of a complete operation that of a new one.
func (o *outcome) reset() {
	o.err = nil
	moment.At("group.work.recycle")
	o.mu.Lock()
	o.mu.begun, o.mu.ended, o.mu.finished = time.Time{}, time.Time{}, false
	o.mu.future, o.mu.audience = nil, audience{}
	o.mu.Unlock()
	o.completed.Store(false)
}

// begin notes when the operation began. It reports false for one that was interrupted and goes on.
func (o *outcome) begin(at time.Time) bool {
	moment.At("group.begin")
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.mu.begun.IsZero() {
		return false
	}
	o.mu.begun = at
	return true
}

// duration is the time from the beginning to the end, or to now.
func (o *outcome) duration() time.Duration {
	o.mu.Lock() // no point: it only looks
	defer o.mu.Unlock()
	switch {
	case o.mu.begun.IsZero():
		return 0
	case o.mu.finished:
		return o.mu.ended.Sub(o.mu.begun)
	}
	return time.Since(o.mu.begun)
}

// done returns a channel that is closed at the end.
func (o *outcome) done() <-chan struct{} {
	moment.At("group.work.done")
	o.mu.Lock()
	defer o.mu.Unlock()
	a := &o.mu.audience
	if a.done == nil {
		a.done = make(chan struct{})
		if o.mu.finished {
			close(a.done)
		}
	}
	return a.done
}

// finishLocked ends the operation and returns who has to hear of it, once the mutex is released.
func (o *outcome) finishLocked(at time.Time, err error) audience {
	o.mu.finished, o.mu.ended, o.err = true, at, err
	now := o.mu.audience
	o.mu.audience = audience{done: now.done}
	return now
}

// looks reports whether somebody wants to see the operation, and not only hear that it has ended.
func (a *audience) looks() bool { return a.promise != nil || len(a.callbacks) > 0 }

// tell says that the operation has ended. Those who look at it get seen, a copy.
func (a *audience) tell(seen *Work) {
	if a.done != nil {
		close(a.done)
	}
	if a.promise != nil {
		a.promise.Complete(seen.call.Outputs, seen.outcome.err)
	}
	if len(a.callbacks) > 0 {
		callBack(seen, a.callbacks...)
	}
}

// callBack runs callbacks in a goroutine of their own.
func callBack(seen *Work, callbacks ...func(*Work)) {
	p := dist.NewPromise[*Work]()
	for _, f := range callbacks {
		p.Future().OnDone(func(w *Work, _ error) { f(w) })
	}
	p.Complete(seen, nil)
}
