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

// waiters is who hears of the end of an operation.
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
