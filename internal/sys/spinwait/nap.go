// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// RawSleep is how long a waiter sleeps at first in a system call that the Go runtime is not told of. For every call that it is told of and that
// blocks, the runtime wakes its monitor, which then looks around every 20 us for a millisecond: where ranks share cores, that takes the
// core from a rank many times for each wait. A nap keeps one of the GOMAXPROCS, so it is short, and a longer wait goes on without it. A
// collection of garbage does not wait for it: the signal with which the runtime stops a thread ends the system call.
const RawSleep = 4 * time.Millisecond

var napping atomic.Int32

// BeginRawSleep reports whether the caller may nap, and then EndNap follows. One of the GOMAXPROCS is always left to others.
func BeginRawSleep() bool {
	if int(napping.Add(1)) < runtime.GOMAXPROCS(0) {
		return true
	}
	napping.Add(-1)
	return false
}

// EndNap ends a nap.
func EndNap() { napping.Add(-1) }
