// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package background

import "time"

// Interval is the time between two looks at something that usually somebody else attends to. It doubles with each look that finds
// nothing to do, because each wakes a thread, for which a rank has to leave its core when cores are scarce. So whatever needs a look waits for
// it no longer than all was attended to before. The zero value is not usable; see [NewInterval].
type Interval struct{ least, now time.Duration }

// NewInterval returns an interval that is never shorter than least.
func NewInterval(least time.Duration) Interval { return Interval{least, least} }

// Now is the interval.
func (i *Interval) Now() time.Duration { return i.now }

// Reset makes the interval short again: a look has found something to do.
func (i *Interval) Reset() { i.now = i.least }

// Grow doubles the interval, up to most, after a look that has found nothing.
func (i *Interval) Grow(most time.Duration) { i.now = max(i.least, min(2*i.now, most)) }
