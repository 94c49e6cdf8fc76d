// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"math/bits"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epoch is when the clock of the waiters began.
var epoch = time.Now()

// Now is the clock of the waiters.
func Now() time.Duration { return time.Since(epoch) }

// YieldCore lets another thread run on this core. The Go scheduler does not know of it.
func YieldCore() {
	Calls.Yields.Add(1)
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// currentCore is the core on which the caller runs.
func currentCore() int {
	var cpu uint32
	//nolint:gosec // the system call takes addresses
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return noCore
	}
	return int(cpu)
}

// allowedCores appends the cores that the calling thread may use.
func allowedCores(list []int) []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return list
	}
	return members(&set, list)
}

// members appends the cores of a set, of more than a thousand possible ones.
func members(set *unix.CPUSet, list []int) []int {
	for i, word := range set {
		for rest := uint64(word); rest != 0; rest &= rest - 1 {
			list = append(list, i*int(unsafe.Sizeof(word))*8+bits.TrailingZeros64(rest))
		}
	}
	return list
}

// moveTo moves the calling thread to another core. It may leave it again: the cores it may use are those of before.
func moveTo(core int) {
	runtime.LockOSThread() // both calls must be about the same thread
	defer runtime.UnlockOSThread()
	var before, only unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil || !before.IsSet(core) {
		return
	}
	only.Set(core)
	if unix.SchedSetaffinity(0, &only) == nil {
		_ = unix.SchedSetaffinity(0, &before)
	}
}

// placeEvery is how often a rank reads on which core it runs, and where the others are.
const placeEvery = 200 * time.Microsecond

// Placer is one rank's part in spreading the ranks of a group over the cores. The zero value is ready.
type Placer struct {
	looked         time.Duration
	cores, allowed []int
	moves          moves
	others         int
}

// Due reports whether it is time to call Place.
func (p *Placer) Due(now time.Duration) bool {
	if p.looked != 0 && now-p.looked < placeEvery {
		return false
	}
	p.looked = now
	return true
}

// Others is how many other ranks were on the caller's core when Place was called last.
func (p *Placer) Others() int { return p.others }

// Place returns the core of the caller, which is rank me of so many. If by what is known of the other ranks too many of them
// are there, it moves to another one first, unless it has just done so.
func (p *Placer) Place(now time.Duration, me, ranks int, coreOf func(rank int) int) int {
	here := currentCore()
	p.cores = p.cores[:0]
	for rank := range ranks {
		p.cores = append(p.cores, coreOf(rank))
	}
	p.cores[me] = here
	if p.others = ranksOn(p.cores, here) - 1; p.others == 0 {
		return here
	}
	p.allowed = allowedCores(p.allowed[:0])
	if to, ok := spread(me, p.cores, p.allowed); ok && p.moves.allow(now) {
		moveTo(to)
		p.others = ranksOn(p.cores, to)
		return to
	}
	return here
}
