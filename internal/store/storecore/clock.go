// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import "time"

// attention is how often a driver looks at the machine, at least, while clients wait for room.
const attention = int64(100 * time.Millisecond)

// clock is the time, in nanoseconds.
type clock struct {
	now      int64 // as told by Tick
	patience int64 // time as far as it counts for clients that are slow
}

// tick sets the time. A turn counts for at most as long as a driver sleeps while somebody waits. If more time has passed, the
// process that serves got none of it, and what clients sent and read meanwhile is not known yet: it is not held against them.
func (c *clock) tick(now int64) {
	if passed := now - c.now; passed > 0 {
		c.patience += min(passed, attention)
		c.now = now
	}
}
