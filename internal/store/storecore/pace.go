// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

// This file tells how a client gets on with the bytes of a request or a reply. Times are in nanoseconds of whatever clock the caller has.

import "time"

// slowStartTime is how much time a client has beside that for its bytes.
const slowStartTime = int64(10 * time.Second)

// Pace is how a client gets on.
type Pace struct {
	Since int64 // when the bytes began to wait
	Moved int64 // when some of them moved last
}

// Start notes that bytes begin to wait.
func (p *Pace) Start(now int64) { p.Since, p.Moved = now, now }

// Slow reports whether nothing has moved for longer than a pause, or all in all less than rate bytes a second.
func (p *Pace) Slow(now, pause, bytes, rate int64) bool {
	return now-p.Moved > pause || now-p.Since > slowStartTime+bytes*int64(time.Second)/rate
}

// Blame weighs bytes by how long nothing has moved, and to a lesser part by how long they have been there: who is being
// served holds much for a short time, and a client that moves one byte now and then is not served.
func (p *Pace) Blame(now int64, bytes int) float64 {
	return float64(bytes) * (1 + float64(now-p.Moved) + float64(now-p.Since)/16)
}
