// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// RawSleep is how long a waiter sleeps at first in a system call that the Go runtime does not know of. For every call that it knows of and that
// blocks, the runtime wakes its monitor, which then polls every 20 us for a millisecond: where ranks share cores, that takes the
// core from a rank many times for each wait. A raw sleep keeps one of the GOMAXPROCS, so it is short, and a longer wait continues without it. A
// collection of garbage does not wait for it: the signal with which the runtime stops a thread ends the system call.
const RawSleep = 4 * time.Millisecond

var rawSleepers atomic.Int32

// BeginRawSleep reports whether the caller may sleep so, and then EndRawSleep follows. One of the GOMAXPROCS is always left to others.
func BeginRawSleep() bool {
	if int(rawSleepers.Add(1)) < runtime.GOMAXPROCS(0) {
		return true
	}
	rawSleepers.Add(-1)
	return false
}

// EndRawSleep ends a raw sleep.
func EndRawSleep() { rawSleepers.Add(-1) }
