// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

// This file has a lock whose wait ends early with a channel, such as a context's. A channel with one place would do, but costs a
// twentieth of a small collective even without contention. This lock is two atomic operations then.

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// ctxMutex is a mutex whose wait can be cancelled. The zero value is not usable; see [newCtxMutex].
type ctxMutex struct {
	held    atomic.Bool
	waiting atomic.Int32
	free    chan struct{} // wakes one waiter
}

// newCtxMutex returns an unlocked mutex.
func newCtxMutex() *ctxMutex { return &ctxMutex{free: make(chan struct{}, 1)} }

// Lock returns true when it holds the mutex, and false if one of the channels was closed first.
func (t *ctxMutex) Lock(over, stop <-chan struct{}) bool {
	if t.held.CompareAndSwap(false, true) {
		return true
	}
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for !t.held.CompareAndSwap(false, true) {
		failpoint.At("shm.mutex.wait")
		select {
		case <-t.free: // another waiter may be faster
		case <-over:
			return false
		case <-stop:
			return false
		}
	}
	return true
}

// Unlock releases the mutex. A waiter is counted before it checks whether the mutex is free, so it sees that or is woken.
func (t *ctxMutex) Unlock() {
	t.held.Store(false)
	if t.waiting.Load() > 0 {
		select {
		case t.free <- struct{}{}:
		default:
		}
	}
}
