// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import "time"

// meter measures how a loop spends its time: awake, and of it with the lock. Its nil value measures nothing.
type meter struct {
	awake, locked  time.Duration
	steps          int
	wokeAt, tookAt time.Time
}

// rise and sleep are called when the loop wakes up and before it sleeps.
func (m *meter) rise() {
	if m != nil {
		m.wokeAt = time.Now()
	}
}

func (m *meter) sleep() {
	if m != nil {
		m.awake += time.Since(m.wokeAt)
	}
}

// lock and unlock are called when the loop has the lock and before it gives it back.
func (m *meter) lock() {
	if m != nil {
		m.tookAt = time.Now()
	}
}

func (m *meter) unlock() {
	if m != nil {
		m.locked += time.Since(m.tookAt)
		m.steps++
	}
}
