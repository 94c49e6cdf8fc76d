// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"slices"
	"time"
)

// noCore is the core of a rank that has not published where it runs.
const noCore = -1

// spread decides whether a rank that shares its core with others of its group moves to another one, and to which. cores has
// the core of each rank, allowed the cores that this rank may use.
//
// A rank moves when the other core has at least two ranks less, and of the ranks on one core only the last moves: so
// ranks that decide at the same time do not follow each other around. The kernel would do the same, but only at its next
// tick, and not at all as long as ranks wake each other.
//
// The last ranks of several crowded cores may decide at the same time, by the same list. Each of them leaves the first places to
// the ranks before it, so that they do not all go to the same core.
func spread(me int, cores []int, allowed []int) (core int, ok bool) {
	here := cores[me]
	if here == noCore || slices.Contains(cores[me+1:], here) {
		return 0, false
	}
	mine := ranksOn(cores, here)
	best, places := mine, 0 // the fewest ranks on a core, and how many cores have so few
	for _, c := range allowed {
		switch n := ranksOn(cores, c); {
		case n < best:
			best, places = n, 1
		case n == best:
			places++
		}
	}
	if mine-best < 2 {
		return 0, false
	}
	before := 0 // ranks that move, too
	for rank, c := range cores[:me] {
		if c != noCore && !slices.Contains(cores[rank+1:], c) && ranksOn(cores, c)-best >= 2 {
			before++
		}
	}
	if mine-(best+before/places) < 2 { // they fill the places
		return 0, false
	}
	place := before % places
	for _, c := range allowed {
		if ranksOn(cores, c) == best {
			if place == 0 {
				return c, true
			}
			place--
		}
	}
	return 0, false
}

// moves limits how often a rank moves to another core. Where ranks sleep, the kernel chooses a core each time it wakes
// one. A rank that left that core again each time would arrive on the other one behind a thread that computes there,
// and wait for its time slice. So a rank that soon has to move again does it less and less often. The zero value is
// ready.
type moves struct {
	last  time.Duration
	pause time.Duration // after the last one
}

// firstPause is the time between two moves at first, maxPause in the end.
const firstPause = time.Millisecond

// allow reports whether the rank may move now, and if so takes it that it does.
func (m *moves) allow(now time.Duration) bool {
	switch since := now - m.last; {
	case since < m.pause:
		return false
	case since < yieldCredit*m.pause:
		m.pause = min(2*m.pause, maxPause)
	default:
		m.pause = firstPause
	}
	m.last = now
	return true
}

// ranksOn is the number of ranks on a core.
func ranksOn(cores []int, core int) (n int) {
	for _, c := range cores {
		if c == core {
			n++
		}
	}
	return n
}
