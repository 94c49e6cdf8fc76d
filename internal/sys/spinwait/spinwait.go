// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package spinwait decides how a rank waits for another one: it spins, yields its core, or sleeps. It is the same for
// shared memory and TCP.
//
// # The rule
//
// Who else needs this core? Counting ranks and cores does not answer that: two ranks may share a core while another one is idle, and
// the other processes of the machine, the limits of a container and the collector are in no count. The kernel knows, and a
// yield asks it. A waiter therefore yields now and then, and decides by how long that took:
//
//	the yield              who needs the core           what the waiter does
//	less than noContention no other thread              spins, and asks again every askEvery
//	up to schedulerSlice   others that wait, as it does  yields and does not spin: the one it waits for may be among them
//	longer                 a thread that computes       spins for spinProbe, then sleeps: waking up preempts that thread, a yield
//	                                                    waits for its whole time slice. It does not yield again for a while,
//	                                                    longer each time
//
// The spinProbe keeps ranks in step that have a core each, apart from threads that compute: while all of them run, none sleeps, and when
// the kernel gives one's core to such a thread, the others leave theirs to the threads there, until that one runs again and wakes
// them. So they lose the time of those threads once and not each for itself. Where another rank of the group is on the core there
// spinProbe does not apply: the awaited rank may be that one.
//
// With several other ranks of the group on the core a yield takes a turn of each, so each counts for partTime. From eight on they cannot be
// distinguished from a thread that computes, and the waiter always yields.
//
// A single yield that took long among many that took a moment changes nothing: the one who computes has had its turn,
// and the others come next, or a limit on the processor time stopped all of them. A waiter that has used its core for
// maxSpin without success sleeps in any case. If that sleep was short, maxSpin is too short for this machine, and
// doubles, up to spinLimit: where waking a sleeper takes longer than the others spin, they all sleep in each operation,
// and wake each other. A long sleep ends that.
//
// What a waiter finds out in operations of much data holds for those only: who computes there may be a rank that copies its part,
// and in the next small operation it does not.
//
// So a wait costs at most spinLimit of one core. Where a large message comes in pieces, a waiter that slept until one
// arrived only spins for spinProbe before it sleeps again. Neither a spin nor a yield passes through the scheduler of
// the Go runtime, which would wake other threads; goroutines of the same process get their turn by its preemption.
//
// [Waiter] is the machine: it has no clock and makes no system call.
package spinwait

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// act is what a waiter does next, before it polls again.
type act uint8

// The acts.
const (
	Spin  act = iota // poll again, for a microsecond or so
	Yield            // give the core away once
	Sleep            // until it is woken
)

// The times of the rule.
const (
	// noContention is the longest that a yield without another thread takes: a system call.
	noContention = time.Microsecond
	// schedulerSlice is longer than others take who do their part of an operation and wait again, and shorter than the time slice of one
	// who computes: the kernels in use give 3 ms and more.
	schedulerSlice = time.Millisecond
	// partTime is as long as one of many ranks on a core may take for its part. Most take a tenth of it.
	partTime = schedulerSlice / 2
	// maxCounted is what counts of a yield. A longer one returned late because a limit on the container's processor time was
	// used up, or because the whole machine stood still, and that would have happened to a waiter that did not yield too.
	maxCounted = 4 * time.Millisecond
	// askEvery is how long a waiter spins before it yields once, to ask whether that is still right.
	askEvery = 5 * time.Microsecond
	// maxSpin is how much of its core a waiter uses before it sleeps; a yield counts as noContention. It is several times what waking
	// a sleeper takes: otherwise a rank that was delayed once is awaited by sleepers, is delayed by having to wake them, and so on.
	maxSpin   = 200 * time.Microsecond
	spinLimit = 4 * maxSpin
	// spinProbe is how long a waiter polls beside a thread that computes before it sleeps: longer than a small
	// operation takes, and than waking a rank.
	spinProbe = 50 * time.Microsecond
	// minSamples is how many yields in a row must return at once before the core counts as free: the kernel does not always switch
	// when it could.
	minSamples = 4
	// expensiveWake is what a yield may cost on average, among others that wait, before sleeping is cheaper.
	expensiveWake = 100 * time.Microsecond
	// yieldCredit is how many times longer than a yield that took long a waiter does not yield again; each further one that takes
	// long doubles that, up to maxPause. With many ranks one of them always asks, and all wait for it.
	yieldCredit = 8
	maxPause    = 320 * time.Millisecond
)

// Much is the number of bytes above which ranks may take a good part of schedulerSlice to copy or reduce what they have.
const Much = 64 << 10

// Waiter waits again and again. All times are readings of one clock that never goes back. The zero value is ready.
type Waiter struct {
	spent     time.Duration // of this core in this wait
	last      time.Duration // when that was counted
	asked     time.Duration // when it yielded last
	extraSpin time.Duration // beyond maxSpin
	gaveUp    bool          // the last wait ended in a sleep because maxSpin was over
	which     int           // of findings is about such operations
	sharing   int           // other ranks on this core
	findings  [2]finding    // in operations of little and of much data
}

// finding is what a waiter has found out about its core.
type finding struct {
	until     time.Duration // no yield before
	pause     time.Duration // the last time without yields
	cost      time.Duration // of a yield, on average
	contended int           // above 0 others that wait need this core; each yield that returned at once takes one
}

// SetSize sets the size of the operation that the next waits belong to.
func (w *Waiter) SetSize(bytes int) {
	if w.which = 0; bytes > Much {
		w.which = 1
	}
}

// Contended reports whether others that wait need this core. Then a wait begins with Next, else with a short
// spin.
func (w *Waiter) Contended() bool { return w.findings[w.which].contended > 0 }

// SetSharing sets how many other ranks of the group are on this core.
func (w *Waiter) SetSharing(others int) { w.sharing = others }

// Begin starts a wait.
func (w *Waiter) Begin(now time.Duration) {
	if w.gaveUp {
		w.gaveUp = false
		if slept := now - w.last; slept < 2*spinLimit { // at most that: it may have done something else since
			w.extraSpin = min(2*w.extraSpin+maxSpin, spinLimit-maxSpin)
		} else {
			w.extraSpin = 0
		}
	}
	w.spent, w.last = 0, now
}

// Resume starts the part of a wait that follows a sleep in which a part arrived, but not all. In an operation of much
// data that is a piece of it, and the next one arrives without this rank: where the network is slow a piece takes
// longer than a sleep, and spinning until it is there would keep a core busy for nothing. So the waiter spins for
// spinProbe and sleeps again.
func (w *Waiter) Resume(now time.Duration) {
	if w.which == 0 {
		w.Begin(now)
		return
	}
	w.spent, w.last, w.gaveUp = maxSpin+w.extraSpin-spinProbe, now, false
}

// Next returns what to do. After Yield the caller calls Yielded.
func (w *Waiter) Next(now time.Duration) act {
	f := &w.findings[w.which]
	w.spent += now - w.last
	w.last = now
	switch {
	case now < f.until && (w.sharing > 0 || w.spent >= spinProbe):
		return Sleep
	case now < f.until:
		return Spin
	case w.spent >= maxSpin+w.extraSpin:
		w.gaveUp = true
		return Sleep
	}
	if f.contended > 0 || now-w.asked >= askEvery {
		w.asked = now
		return Yield
	}
	return Spin
}

// Yielded records that the yield has returned.
func (w *Waiter) Yielded(now time.Duration) {
	f := &w.findings[w.which]
	took := min(now-w.asked, maxCounted)
	w.asked, w.last = now, now
	w.spent += min(took, noContention)
	f.cost += (took - f.cost) / 64
	switch {
	case took < noContention:
		f.contended, f.pause = max(f.contended-1, 0), 0
	case took < max(schedulerSlice, time.Duration(w.sharing)*partTime):
		f.contended = minSamples
	case f.contended == 0 || f.cost > expensiveWake:
		f.pause = min(max(2*f.pause, yieldCredit*took), maxPause)
		f.until, f.contended, f.cost = now+f.pause, 0, 0
	}
}

// RawSleep is how long a waiter sleeps at first in a system call that the Go runtime does not know of. For every call
// that it knows of and that blocks, the runtime wakes its monitor, which then polls every 20 us for a millisecond:
// where ranks share cores, that takes the core from a rank many times for each wait. A raw sleep keeps one of the
// GOMAXPROCS, so it is short, and a longer wait continues without it. A collection of garbage does not wait for it: the
// signal with which the runtime stops a thread ends the system call.
const RawSleep = 4 * time.Millisecond

var rawSleepers atomic.Int32

// BeginRawSleep reports whether the caller may sleep so, and then EndRawSleep follows. One of the GOMAXPROCS is always left to others.
func BeginRawSleep() bool {
	if int(rawSleepers.Add(1)) < runtime.GOMAXPROCS(0) {
		return true
	}
	rawSleepers.Add(-1)
	return false
}

// EndRawSleep ends a raw sleep.
func EndRawSleep() { rawSleepers.Add(-1) }

// Calls counts the system calls with which this process waited and woke others, over all groups, for "cohort bench coll --cost".
// What the Go runtime calls for itself is not in it.
var Calls struct {
	Yields atomic.Int64 // of a core; those of a store under load, too
	Futex  atomic.Int64 // sleeps on a word in shared memory, and wake-ups of others
	Epoll  atomic.Int64 // polls of sockets and sleeps until one is ready
}

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
