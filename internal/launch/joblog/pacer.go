// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import "time"

const (
	// stillTime is how long a piece of a line waits for the rest if its worker has the screen to itself: a prompt has no rest.
	stillTime = 100 * time.Millisecond
	// sharedTime is the same where other workers print to the same screen, so that a worker that is kept waiting in the
	// middle of a line finds no lines of others in it. Two seconds is what users are promised.
	sharedTime = 1500 * time.Millisecond
	// barTime is how long a progress bar on a screen that others use waits for its next state if it keeps changing.
	barTime = time.Second
	// repeatTime is the time between two states of a line that is printed anew, as a line of its own, while it changes.
	repeatTime = 5 * time.Second
)

// pacer decides when a line that is not finished is shown: when it has stood still for a while, and now and then while it
// keeps changing. It is a machine without a clock.
type pacer struct {
	still time.Duration // shown when it has not changed for so long,
	limit time.Duration // or when a change has waited for so long,
	every time.Duration // and the last time it was shown is so long ago
	first time.Time     // the first change that is not shown; zero: none
	last  time.Time     // the last one
	shown time.Time
}

// changed says that there is something to show that was not there before.
func (p *pacer) changed(now time.Time) {
	if p.first.IsZero() {
		p.first = now
	}
	p.last = now
}

// clear says that nothing is left to show: the line was finished.
func (p *pacer) clear() { p.first = time.Time{} }

// printed says that the line was shown as it is now.
func (p *pacer) printed(now time.Time) { p.first, p.shown = time.Time{}, now }

// due returns when the line is to be shown; zero: nothing is to be shown.
func (p *pacer) due() time.Time {
	if p.first.IsZero() {
		return time.Time{}
	}
	return sooner(p.last.Add(p.still), later(p.first.Add(p.limit), p.shown.Add(p.every)))
}

// over reports whether a time has come. The zero time never comes.
func over(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// sooner returns the first of two times, of which the zero time never comes.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
