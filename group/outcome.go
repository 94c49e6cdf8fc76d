// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// outcome is how and when an operation ends, once, and who hears of it.
type outcome struct {
	// err and ended are set before completed, and read after it.
	completed atomic.Bool
	err       error
	ended     time.Time
	begun     time.Time // guarded by the mutex of the operation's group until then

	mu struct {
		sync.Mutex
		future  *cohort.Future[[]*tensor.Tensor]
		waiters waiters
	}
}

// waiters is who hears of the end of an operation.
type waiters struct {
	done      chan struct{}
	promise   *cohort.Promise[[]*tensor.Tensor]
	callbacks []func(*Work)
}

// over reports whether the operation has ended.
func (o *outcome) over() bool { return o.completed.Load() }

// reset makes the outcome of a complete operation that of a new one. It is its owner's alone, so no mutex is needed.
func (o *outcome) reset() {
	o.err, o.ended, o.begun = nil, time.Time{}, time.Time{}
	o.mu.future, o.mu.waiters = nil, waiters{}
	o.completed.Store(false)
}

// begin notes when the operation began. It reports false for one that was interrupted and goes on.
func (o *outcome) begin(at time.Time) bool {
	if !o.begun.IsZero() {
		return false
	}
	o.begun = at
	return true
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
		if o.over() {
			close(a.done)
		}
	}
	return a.done
}

// looks reports whether somebody wants to see the operation, and not only hear that it has ended.
func (a *waiters) needWork() bool { return a.promise != nil || len(a.callbacks) > 0 }

// tell says that the operation has ended. Those who look at it get seen, a copy.
func (a *waiters) tell(seen *Work) {
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
	p := cohort.NewPromise[*Work]()
	for _, f := range callbacks {
		p.Future().OnDone(func(w *Work, _ error) { f(w) })
	}
	p.Complete(seen, nil)
}
