// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import "sync/atomic"

// Calls counts the system calls with which this process waited and woke others, over all groups, for "cohort bench coll --cost".
// What the Go runtime calls for itself is not in it.
var Calls struct {
	Yields atomic.Int64 // of a core; those of a store under load, too
	Futex  atomic.Int64 // sleeps on a word in shared memory, and wake-ups of others
	Epoll  atomic.Int64 // polls of sockets and sleeps until one is ready
}
