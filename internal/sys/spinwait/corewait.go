// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package spinwait decides how a rank waits for another one: it spins, yields its core, or sleeps. It is the same for
// shared memory and TCP.
//
// # The rule
//
// Who else needs this core? Counting ranks and cores does not tell: two ranks may share a core while another one is idle, and
// the other processes of the machine, the limits of a container and the collector are in no count. The kernel knows, and a
// yield asks it. A waiter therefore yields now and then, and goes by how long that took:
//
//	the yield              who needs the core           what the waiter does
//	took less than Alone   nobody                       spins, and asks again every askEvery
//	took up to Slice       others who wait, as it does  yields and does not spin: the one it waits for may be among them
//	took longer            a thread that computes       spins for a Glance, then sleeps: waking up preempts that thread, a yield
//	                                                    waits for its whole time slice. It does not yield again for a while,
//	                                                    longer each time
//
// The Glance keeps ranks in step that have a core each, but for threads that compute: while all of them run, none sleeps, and when
// the kernel gives one's core to such a thread, the others leave theirs to the threads there, until that one comes back and wakes
// them. So they lose the time of those threads once and not each for itself. Where another rank of the group is on the core there
// is no Glance: the one that is awaited may be that one.
//
// With several other ranks of the group on the core a yield takes a turn of each, so each counts for a Turn. From eight on they cannot be
// told from a thread that computes, and the waiter always yields.
//
// A single yield that took long among many that took a moment changes nothing: the one who computes has had its turn, and
// the others come next, or a limit on the processor time stopped all of them. Whoever has used its core for Patience without success sleeps in any case.
// If that sleep was short, Patience is too short for this machine, and doubles, up to maxPatience: where waking a sleeper takes longer than the others
// have patience, they all sleep in each operation, and wake each other. A long sleep ends that.
//
// What a waiter finds out in operations of much data holds for those only: who computes there may be a rank that copies its part,
// and in the next small operation it does not.
//
// So a wait costs at most maxPatience of one core. Where a large message comes in pieces, whoever slept until one was there only looks for a
// Glance before it sleeps again. Neither a spin nor a yield passes through the scheduler of the Go runtime,
// which would wake other threads; goroutines of the same process get their turn by its preemption.
//
// [Waiter] is the machine: it has no clock and makes no system call.
package spinwait

import "time"

// act is what a waiter does next, before it looks again.
type act uint8

// The acts.
const (
	Spin  act = iota // look again, for a microsecond or so
	Yield            // give the core away once
	Sleep            // until somebody wakes it
)

// The times of the rule.
const (
	// noContention is the longest that a yield takes which nobody makes use of: a system call.
	noContention = time.Microsecond
	// schedulerSlice is longer than others take who do their part of an operation and wait again, and shorter than the time slice of one
	// who computes: the kernels in use give 3 ms and more.
	schedulerSlice = time.Millisecond
	// Turn is as long as one of many ranks on a core may take for its part. Most take a tenth of it.
	Turn = schedulerSlice / 2
	// longest is what counts of a yield. One that took longer came back late because a limit on the container's processor time was
	// used up, or because the whole machine stood still, and that would have happened to a waiter that did not yield too.
	longest = 4 * time.Millisecond
	// askEvery is how long a waiter spins before it yields once, to ask whether that is still right.
	askEvery = 5 * time.Microsecond
	// maxSpin is how much of its core a waiter uses before it sleeps; a yield counts as Alone. It is several times what waking
	// a sleeper takes: otherwise a rank that was delayed once is awaited by sleepers, is delayed by having to wake them, and so on.
	maxSpin     = 200 * time.Microsecond
	maxPatience = 4 * maxSpin
	// spinProbe is how long a waiter looks beside a thread that computes before it sleeps: longer than a small operation takes, and than waking
	// a rank.
	spinProbe = 50 * time.Microsecond
	// minSamples is how many yields in a row must come back at once before nobody needs the core: the kernel does not always switch
	// when it could.
	minSamples = 4
	// expensiveWake is what a yield may cost on average, among others who wait, before sleeping is cheaper.
	expensiveWake = 100 * time.Microsecond
	// yieldCredit is how many times longer than a yield that took long a waiter does not yield again; each further one that takes
	// long doubles that, up to maxPause. With many ranks there is always one that asks, and all wait for it.
	yieldCredit = 8
	maxPause    = 320 * time.Millisecond
)

// Much is the number of bytes above which ranks may take a good part of a Slice to copy or reduce what they have.
const Much = 64 << 10

// Waiter is one who waits again and again. All times are readings of one clock that never goes back. The zero value is ready.
type Waiter struct {
	spent    time.Duration // of this core in this wait
	last     time.Duration // when that was counted
	asked    time.Duration // when it yielded last
	patience time.Duration // beyond Patience
	tired    bool          // the last wait ended in a sleep, for want of patience
	which    int           // of found is about such operations
	crowd    int           // other ranks on this core
	found    [2]finding    // in operations of little and of much data
}

// finding is what a waiter has found out about its core.
type finding struct {
	until  time.Duration // no yield before
	pause  time.Duration // the last time without yields
	cost   time.Duration // of a yield, on average
	wanted int           // above 0 others who wait need this core; each yield that came back at once takes one
}

// About sets the size of the operation that the next waits belong to.
func (w *Waiter) About(bytes int) {
	if w.which = 0; bytes > Much {
		w.which = 1
	}
}

// Wanted reports whether others who wait need this core. Then the first thing to do in a wait is Next, else a short spin is
// worth a try.
func (w *Waiter) Wanted() bool { return w.found[w.which].wanted > 0 }

// Among tells how many other ranks of the group are on this core.
func (w *Waiter) Among(others int) { w.crowd = others }

// Begin starts a wait.
func (w *Waiter) Begin(now time.Duration) {
	if w.tired {
		w.tired = false
		if slept := now - w.last; slept < 2*maxPatience { // at most that: it may have done something else since
			w.patience = min(2*w.patience+maxSpin, maxPatience-maxSpin)
		} else {
			w.patience = 0
		}
	}
	w.spent, w.last = 0, now
}

// GoOn starts the part of a wait that follows a sleep in which something came, but not all. In an operation of much data that is a piece of
// it, and the next one arrives without this rank: where the network is slow a piece takes longer than a sleep, and spinning until it is
// there would keep a core busy for nothing. So the waiter looks for a Glance and sleeps again.
func (w *Waiter) GoOn(now time.Duration) {
	if w.which == 0 {
		w.Begin(now)
		return
	}
	w.spent, w.last, w.tired = maxSpin+w.patience-spinProbe, now, false
}

// Next tells what to do. After Yield the caller calls Yielded.
func (w *Waiter) Next(now time.Duration) act {
	f := &w.found[w.which]
	w.spent += now - w.last
	w.last = now
	switch {
	case now < f.until && (w.crowd > 0 || w.spent >= spinProbe):
		return Sleep
	case now < f.until:
		return Spin
	case w.spent >= maxSpin+w.patience:
		w.tired = true
		return Sleep
	}
	if f.wanted > 0 || now-w.asked >= askEvery {
		w.asked = now
		return Yield
	}
	return Spin
}

// Yielded tells that the yield has come back.
func (w *Waiter) Yielded(now time.Duration) {
	f := &w.found[w.which]
	took := min(now-w.asked, longest)
	w.asked, w.last = now, now
	w.spent += min(took, noContention)
	f.cost += (took - f.cost) / 64
	switch {
	case took < noContention:
		f.wanted, f.pause = max(f.wanted-1, 0), 0
	case took < max(schedulerSlice, time.Duration(w.crowd)*Turn):
		f.wanted = minSamples
	case f.wanted == 0 || f.cost > expensiveWake:
		f.pause = min(max(2*f.pause, yieldCredit*took), maxPause)
		f.until, f.wanted, f.cost = now+f.pause, 0, 0
	}
}
