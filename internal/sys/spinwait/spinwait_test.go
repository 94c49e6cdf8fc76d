// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"runtime"
	"testing"
	"time"
)

// drive lets a waiter wait and answers its yields with the times given, until they are used up; it returns the acts.
func drive(w *Waiter, now *time.Duration, yields ...time.Duration) (acts []act) {
	for w.Begin(*now); ; {
		a := w.Next(*now)
		acts = append(acts, a)
		switch a {
		case Spin:
			*now += time.Microsecond
		case Yield:
			if len(yields) == 0 {
				return acts
			}
			*now += yields[0]
			yields = yields[1:]
			w.Yielded(*now)
		case Sleep:
			return acts
		}
	}
}

func count(acts []act, a act) (n int) {
	for _, x := range acts {
		if x == a {
			n++
		}
	}
	return n
}

func TestIdleCore(t *testing.T) {
	t.Parallel()
	var w Waiter
	now := time.Hour
	quick := make([]time.Duration, 1000)
	for i := range quick {
		quick[i] = 300 * time.Nanosecond
	}
	acts := drive(&w, &now, quick...)
	if spins, yields := count(acts, Spin), count(acts, Yield); spins < 4*yields || acts[len(acts)-1] != Sleep {
		t.Errorf("%d spins, %d yields, then %v: it spins, asks now and then, and sleeps in the end", spins, yields, acts[len(acts)-1])
	}
	if waited := now - time.Hour; waited < maxSpin || waited > maxSpin+20*time.Microsecond {
		t.Errorf("it slept after %v", waited)
	}
}

func TestOthersWait(t *testing.T) {
	t.Parallel()
	var w Waiter
	now := time.Hour
	const turn = 2 * time.Microsecond
	acts := drive(&w, &now, turn, turn, 300*time.Nanosecond, turn, turn)
	if count(acts, Spin) != 0 || !w.Contended() {
		t.Errorf("%v, wanted %v: among others that wait it only yields, also when one yield found no other", acts, w.Contended())
	}
	drive(&w, &now, 300, 300, 300, 300)
	if w.Contended() {
		t.Error("the others have ended, and it still yields")
	}
	// The core is used by others meanwhile, which does not count as its own use.
	long := make([]time.Duration, 150)
	for i := range long {
		long[i] = 50 * time.Microsecond
	}
	if acts = drive(&w, &now, long...); acts[len(acts)-1] == Sleep {
		t.Error("it slept while the others took their turns")
	}
}

func TestComputingThread(t *testing.T) {
	t.Parallel()
	const slice = 4 * time.Millisecond
	var w Waiter
	now := time.Hour
	yields := 0
	for start := now; now-start < 2*time.Second; {
		acts := drive(&w, &now, slice, slice, slice)
		yields += count(acts, Yield)
		now += 10 * time.Microsecond
	}
	if yields > 15 {
		t.Errorf("it gave its core away %d times in 2 s, %v each", yields, slice)
	}
	start := now
	if acts := drive(&w, &now); count(acts, Yield) != 0 || acts[len(acts)-1] != Sleep || now-start != spinProbe {
		t.Errorf("%v, for %v: where a yield costs a time slice it polls for a moment and sleeps", acts, now-start)
	}
	w.SetSharing(1)
	if acts := drive(&w, &now); len(acts) != 1 || acts[0] != Sleep {
		t.Errorf("%v: it sleeps at once where the awaited rank may be on its core", acts)
	}
	w.SetSharing(0)
	// noContention again, it finds out at the next question.
	now += maxPause
	drive(&w, &now, 300)
	if a := drive(&w, &now, 300, 300); count(a, Sleep) != 0 {
		t.Errorf("%v: it sleeps though it is alone", a)
	}
}

// A thread that computes among many that wait takes its turn now and then; that alone is not a reason to sleep, but it is where it does so
// again and again.
func TestComputesAmongOthers(t *testing.T) {
	t.Parallel()
	const turn, slice = 2 * time.Microsecond, 3 * time.Millisecond
	var w Waiter
	now := time.Hour
	var mixed []time.Duration
	for i := range 180 {
		if i%90 == 40 {
			mixed = append(mixed, slice)
		} else {
			mixed = append(mixed, turn)
		}
	}
	if acts := drive(&w, &now, mixed...); count(acts, Sleep)+count(acts, Spin) != 0 {
		t.Error("a slice in ninety turns made it stop to yield")
	}
	acts := drive(&w, &now, turn, slice, turn, slice, turn, slice, turn, slice, turn, slice)
	if acts[len(acts)-1] != Sleep {
		t.Error("every second yield took a time slice, and it still yields")
	}
}

// A rank that the kernel moves back each time gives up for longer and longer, and one that stays where it went may move at once
// when it has to again.
func TestMovesBecomeRare(t *testing.T) {
	t.Parallel()
	var m moves
	n, start := 0, time.Hour
	now := start
	for ; now-start < 2*time.Second; now += 200 * time.Microsecond {
		if m.allow(now) {
			n++
		}
	}
	if n < 5 || n > 20 {
		t.Errorf("a rank that is moved back each time moved %d times in 2 s", n)
	}
	now += yieldCredit * maxPause
	if !m.allow(now) || m.allow(now+firstPause/2) || !m.allow(now+firstPause) {
		t.Error("a rank that stayed where it was for long does not move when it has to")
	}
}

// TestResume: a waiter that slept until a piece of much data arrived spins for spinProbe and sleeps again, however
// often, while one for little data spins for maxSpin each time.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bytes int
		most  time.Duration
	}{{Much, spinLimit}, {Much + 1, spinProbe}} {
		var w Waiter
		now := time.Hour
		begin := w.Begin
		for pieces := range 10 {
			w.SetSize(c.bytes)
			began := now
			for begin(now); w.Next(now) != Sleep; {
				now += time.Microsecond
				w.Yielded(now)
			}
			if polled := now - began; pieces > 0 && (polled > c.most+time.Microsecond || polled < c.most/4) {
				t.Errorf("%d bytes: it polled for %v, not at most %v", c.bytes, polled, c.most)
			}
			now += 300 * time.Microsecond // until the next piece
			begin = w.Resume
		}
	}
}

// TestRawSleepsLeaveOneProc: one of the GOMAXPROCS never sleeps so, whatever their number.
func TestRawSleepsLeaveOneProc(t *testing.T) {
	for _, procs := range []int{1, 2, 5} {
		before := runtime.GOMAXPROCS(procs)
		sleepers := 0
		for BeginRawSleep() {
			sleepers++
		}
		if sleepers != procs-1 {
			t.Errorf("%d of %d sleep", sleepers, procs)
		}
		for range sleepers {
			EndRawSleep()
		}
		if procs > 1 {
			if !BeginRawSleep() {
				t.Error("no raw sleep is allowed after all have ended")
			}
			EndRawSleep()
		}
		runtime.GOMAXPROCS(before)
	}
}
