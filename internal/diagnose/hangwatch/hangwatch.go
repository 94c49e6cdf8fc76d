// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package hangwatch decides when a job hangs that is looked at again and again. It is pure: each look is an event with its time, and the
// answer says how to look next, and whether the job hangs.
package hangwatch

import (
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

const (
	// SamplesPerHang is how often a job is looked at within the time after which it counts as hung.
	SamplesPerHang = 8
	// minSamples is how many looks in a row must find a job at the same place. Where looking takes long, there are few within the time,
	// and a job that works can be found at the same line by chance.
	minSamples = SamplesPerHang / 2
	// notAgain is for how many times that time a hang that is not sure is not reported again. A rank that polls for something
	// may be found elsewhere for a moment.
	notAgain = 10
)

// Order is how to look next.
type Order int

// The orders. A glance is a look that the job does not notice; a full look asks flight recorders and NCCL, too, and can take seconds.
const (
	Glance  Order = iota
	Prepare       // begin a full look, and glance while it goes on
	Collect       // wait for the full look that was prepared
	Repeat        // take another full look, to compare it with the first
)

// Look is what was seen of a job.
type Look struct {
	At   time.Duration // when the look was over, since some moment
	Seen verdict.Job
}

// Hang is a job that hangs.
type Hang struct {
	Since   time.Duration // how long nothing has moved, at least
	Sure    bool          // false: GPUs may still compute, or it ran
	Ran     bool          // all ranks have run in that time, though they were at the same place whenever they were looked at
	Verdict verdict.Verdict
	Seen    verdict.Job
}

// watch is the watch over one attempt to run a job.
type watch struct {
	timeout, lead time.Duration
	order         Order
	stand         stand
	reported      place       // of the last hang that was reported and not sure
	recorders     progress    // in full looks at a job whose ranks have run
	full          verdict.Job // the first of two full looks
	troubled      int         // ranks that could not be read in the last look
	failed        bool        // the last look was left out because of that
}

// place is where the ranks of a job were found at a time.
type place struct {
	ranks []string
	at    time.Duration
}

// progress is how far recorders had come, and when that was seen first.
type progress struct {
	text string
	at   time.Duration
}

// stand is the time that a job has spent at the place that it was found at last.
type stand struct {
	place                  // when it was found there first
	looks    int           // how often since then
	prepared bool          // a full look was begun since then
	due      time.Duration // how long it has to stand there until the hang is reported; 0: it was reported
}

// New returns a watch that tells a hang when nothing has moved for a time. Lead is how long a full look can take: it is begun that much
// earlier, so that the job does not stand still for as much longer.
func New(timeout, lead time.Duration) *watch { return &watch{timeout: timeout, lead: lead} }

// Took takes a look of the kind ordered last, at first a glance. It returns how to look next, and a hang that has to be reported now:
// each hang is reported once, or twice where it could not be sure at first.
func (w *watch) Took(l Look) (Order, *Hang) {
	var found *Hang
	switch w.order {
	case Collect:
		w.order, found = w.collected(l)
	case Repeat:
		w.order, found = Glance, w.repeated(l)
	default:
		w.order = w.glanced(l)
	}
	return w.order, found
}

// glanced takes a look that costs nothing.
func (w *watch) glanced(l Look) Order {
	if w.fails(l.Seen) {
		return Glance
	}
	v := verdict.Judge(l.Seen)
	s := &w.stand
	if !still(v) || !slices.Equal(v.Places, s.ranks) {
		*s = stand{place: place{v.Places, l.At}, due: w.timeout}
		return Glance
	}
	s.looks++
	stood := l.At - s.at
	switch {
	case s.due == 0:
		return Glance
	case s.prepared && stood >= s.due && s.looks >= minSamples:
		s.prepared = false
		return Collect
	case !s.prepared && stood >= max(s.due/2, s.due-w.lead):
		s.prepared = true
		return Prepare
	}
	return Glance
}

// fails reports whether a rank could not be read that could be before. Such a look says nothing, and is left out; the next one counts in
// any case.
func (w *watch) fails(seen verdict.Job) bool {
	troubled := 0
	for _, r := range seen.Ranks {
		if r.Gone == "" && r.Main == nil && r.Trouble != "" {
			troubled++
		}
	}
	w.failed = troubled > w.troubled && !w.failed && w.stand.ranks != nil
	if !w.failed {
		w.troubled = troubled
	}
	return w.failed
}

// still reports whether a job stands still, as far as one look shows. A rank that gets on with its work may be what the others wait for.
func still(v verdict.Verdict) bool { return (v.Hung || v.Still) && len(v.Moving) == 0 }

// collected takes the full look that was begun before the time was over.
func (w *watch) collected(l Look) (Order, *Hang) {
	if w.fails(l.Seen) {
		return Glance, nil
	}
	v := verdict.Judge(l.Seen)
	switch {
	case !still(v) || !slices.Equal(v.Places, w.stand.ranks):
		w.stand.ranks = nil
		return Glance, nil
	case v.Unseen:
		w.full = l.Seen
		return Repeat, nil
	}
	return Glance, w.report(l, true)
}

// repeated takes the second full look at a job that stood still as far as could be seen, while GPUs may compute.
func (w *watch) repeated(l Look) *Hang {
	if w.fails(l.Seen) {
		return nil
	}
	wentOn, sure := compared(w.full, l.Seen)
	w.full = verdict.Job{}
	if wentOn {
		w.stand.ranks = nil
		return nil
	}
	return w.report(l, sure)
}

// report reports the hang. One that is not sure is looked at once more after as much time again.
func (w *watch) report(l Look, sure bool) *Hang {
	stood, first := l.At-w.stand.at, w.stand.due == w.timeout
	ran := lively(l.Seen, stood) && !w.recorded(l)
	sure = sure && !ran
	w.stand.due = 2 * stood
	if sure {
		w.stand.due = 0
	}
	v := verdict.Judge(l.Seen)
	if !sure {
		again := slices.Equal(v.Places, w.reported.ranks) && l.At-w.reported.at < notAgain*w.timeout
		if !first || again {
			return nil
		}
		w.reported = place{v.Places, l.At}
	}
	v.Sentence = v.Stood()
	return &Hang{Since: stood, Sure: sure, Ran: ran, Verdict: v, Seen: l.Seen}
}

// recorded reports whether the recorders of all ranks prove that the job has stood still for as long as it may: it has run, perhaps to look
// for something again and again, and has started nothing.
func (w *watch) recorded(l Look) bool {
	none := func(r verdict.Rank) bool { return r.Gone == "" && (r.Dump == nil || len(r.Dump.Entries) == 0) }
	if slices.ContainsFunc(l.Seen.Ranks, none) {
		w.recorders = progress{}
		return false
	}
	if text := verdict.Progress(l.Seen.Ranks); text != w.recorders.text || text == "" {
		w.recorders = progress{text, l.At}
		return false
	}
	return l.At-w.recorders.at >= w.timeout
}

// lively reports whether all ranks have run while the job seemed to stand still. They may look for something again and
// again, or the job works and is mostly found in the same line, where it waits for data, for instance. In a collective
// that does not end nothing runs.
func lively(seen verdict.Job, stood time.Duration) bool {
	return len(seen.Ranks) > 0 && !slices.ContainsFunc(seen.Ranks, func(r verdict.Rank) bool { return r.Idle == 0 || r.Idle > stood/2 })
}

// compared judges a job that was looked at twice. It is sure that the job hangs if its flight recorders have come no further, or if there
// are none and a rank waits for something else than a GPU.
func compared(first, second verdict.Job) (wentOn, sure bool) {
	a, b := verdict.Judge(first), verdict.Judge(second)
	progress := verdict.Progress(first.Ranks)
	wentOn = !slices.Equal(a.Places, b.Places) || progress != verdict.Progress(second.Ranks)
	return wentOn, progress != "" || len(a.Culprits) > 0
}
