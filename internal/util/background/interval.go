// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package background

import "time"

// Interval is the time between two polls of work that usually another goroutine does. It doubles with each poll that finds
// nothing to do, because each wakes a thread, for which a rank has to leave its core when cores are scarce. So unattended work waits for
// it no longer than all was attended before. The zero value is not usable; see [NewInterval].
type Interval struct{ least, now time.Duration }

// NewInterval returns an interval that is never shorter than least.
func NewInterval(least time.Duration) Interval { return Interval{least, least} }

// Now is the interval.
func (i *Interval) Now() time.Duration { return i.now }

// Reset makes the interval short again: a poll has found something to do.
func (i *Interval) Reset() { i.now = i.least }

// Grow doubles the interval, up to most, after a poll that has found nothing.
func (i *Interval) Grow(most time.Duration) { i.now = max(i.least, min(2*i.now, most)) }
