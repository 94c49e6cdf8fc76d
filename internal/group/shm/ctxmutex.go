// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

// This file has a lock that can be waited for together with the end of something else. A channel with one place would do, but costs a
// twentieth of a small collective even when nobody else wants it. Then this lock is two atomic operations.

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// ctxMutex is held by one at a time. The zero value is not usable; see [New].
type ctxMutex struct {
	held    atomic.Bool
	waiting atomic.Int32
	free    chan struct{} // told to one of those who wait
}

// NewCtxMutex returns a turn that is free.
func NewCtxMutex() *ctxMutex { return &ctxMutex{free: make(chan struct{}, 1)} }

// Take returns true when it has the turn, and false if one of the channels ended first.
func (t *ctxMutex) Take(over, stop <-chan struct{}) bool {
	if t.held.CompareAndSwap(false, true) {
		return true
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for !t.held.CompareAndSwap(false, true) {
		failpoint.At("turn.wait")
		select {
		case <-t.free: // somebody else may be faster
		case <-over:
			return false
		case <-stop:
			return false
		}
	}
	return true
}

// Give gives the turn back. Whoever waits is counted before it looks whether the turn is free, so it sees that or is told.
func (t *ctxMutex) Give() {
	t.held.Store(false)
	if t.waiting.Load() > 0 {
		select {
		case t.free <- struct{}{}:
		default:
		}
	}
}
