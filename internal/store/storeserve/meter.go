// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"runtime"
	"time"
)

// meter measures what a loop does: the processor time that it uses, how much of it with the lock, and the connections
// that it accepts. Its nil value measures nothing.
type meter struct {
	cpu    func() time.Duration // that of the calling thread
	used   time.Duration
	locked time.Duration // in steps that were not interrupted
	steps  int
	whole  int // steps that were not interrupted
	tookAt time.Time
	let    int // connections that it accepted
}

// begin and end are called when the loop's goroutine begins and ends. In between it stays on one thread, so that it can be measured.
func (m *meter) begin() {
	if m != nil {
		runtime.LockOSThread()
		m.used -= m.cpu()
	}
}

func (m *meter) end() {
	if m != nil {
		m.used += m.cpu()
		runtime.UnlockOSThread()
	}
}

// interruption is how long a thread is away from its core at least when another gets it. A step takes a few microseconds. The clock of
// the thread itself would tell it exactly, but it takes as long as a step to look at that.
const interruption = 100 * time.Microsecond

// lock and unlock are called, unless the meter is nil, when the loop has the lock and before it gives it back.
func (m *meter) lock() {
	m.tookAt = time.Now()
}

func (m *meter) unlock() {
	m.steps++
	if took := time.Since(m.tookAt); took < interruption {
		m.locked += took
		m.whole++
	}
}

// accepted is called when the loop has accepted n connections.
func (m *meter) accepted(n int) {
	if m != nil {
		m.let += n
	}
}
