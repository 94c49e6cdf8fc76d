// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/spinwait"
)

// The words are shared between processes, so the futex operations are not the private ones.
const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// futexWait sleeps while *word is value, at most for the given time, and reports whether that was over. It may return early for no reason.
// With raw, the scheduler does not know of the sleep at first.
func futexWait(word *uint32, value uint32, limit time.Duration, raw bool) (over bool) {
	spinwait.Calls.Futex.Add(1)
	limit = max(limit, time.Microsecond)
	if raw && spinwait.BeginRawSleep() {
		ts := unix.NsecToTimespec(int64(min(limit, spinwait.RawSleep)))
		_, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0) //nolint:gosec
		spinwait.EndRawSleep()
		if limit -= spinwait.RawSleep; errno != unix.ETIMEDOUT || limit <= 0 {
			return errno == unix.ETIMEDOUT
		}
	}
	ts := unix.NsecToTimespec(int64(limit))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(value), uintptr(unsafe.Pointer(&ts)), 0, 0) //nolint:gosec
	return errno == unix.ETIMEDOUT
}

// futexWake wakes everyone who sleeps on word.
func futexWake(word *uint32) {
	spinwait.Calls.Futex.Add(1)
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, math.MaxInt32, 0, 0, 0) //nolint:gosec // the system call takes addresses
}
