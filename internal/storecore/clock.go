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

// pace is how a client gets on with the bytes of a request or a reply. It is measured by clock.patience.
type pace struct {
	since int64 // when they began to wait
	moved int64 // when some of them moved last
}

func (p *pace) start(now int64) { p.since, p.moved = now, now }

// slow reports whether nothing has moved for longer than a pause, or all in all less than rate bytes a second.
func (p *pace) slow(now, pause, bytes, rate int64) bool {
	return now-p.moved > pause || now-p.since > slowStart+bytes*int64(time.Second)/rate
}

// blame weighs bytes by how long nothing has moved, and to a lesser part by how long they have been there: who is being
// served holds much for a short time, and a client that moves one byte now and then is not served.
func (p *pace) blame(now int64, bytes int) float64 {
	return float64(bytes) * (1 + float64(now-p.moved) + float64(now-p.since)/16)
}
