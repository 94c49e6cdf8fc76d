// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/internal/moment"
)

const (
	// spinTurns are the turns of the spin loop, a pause instruction of 10 to 60 ns each, between looks at the clock.
	spinTurns = 64
	// spinLimit is how long a rank spins when every rank can have a core. It is longer than it takes to wake a sleeper:
	// otherwise a rank that had to be woken once is late for the next step too, and the others sleep again, for ever.
	spinLimit = 25 * time.Microsecond
	// yields that a rank tries before it sleeps when there are more ranks than cores: few when sleeping turned out to be
	// right, many when not.
	minYields, maxYields = 4, 256
	// goschedEvery is how many yields pass until the other goroutines of this process get their turn too.
	goschedEvery = 16
	// maxMisses bounds how seldom a rank tries to spin: once in 1<<maxMisses waits.
	maxMisses = 4
	// sleepSlice is how often a sleeper looks for what no futex reports: a dead rank, the end of a context.
	sleepSlice = 40 * time.Millisecond
)

func reached(step, target uint32) bool { return int32(step-target) >= 0 } //nolint:gosec // wrap-around order is the point

// waiter is the state of waiting; only the goroutine that runs the operation uses it.
type waiter struct {
	turns  int  // of the first look: some when every rank can have a core, else none
	misses int  // spins in a row that were in vain
	skip   int  // waits to go without spinning
	yields int  // yields before sleeping, adapted; only with more ranks than cores
	shared bool // another rank is a goroutine of this process
}

func newWaiter(ranks int) waiter {
	w := waiter{}
	if ranks <= runtime.NumCPU() {
		w.turns = spinTurns
	} else {
		w.yields = maxYields
	}
	return w
}

// advance publishes everything written so far as this rank's next step and returns when all ranks have taken it. When it
// was interrupted it only goes on waiting.
func (e *Engine) advance(ctx context.Context) error {
	if !e.op.waiting {
		e.op.waiting = true
		e.step++
		me := e.lines[e.rank]
		atomic.StoreUint32(&me.step, e.step)
		if atomic.LoadUint32(&me.sleepers) != 0 {
			futexWake(&me.step)
		}
	}
	for _, p := range e.peers {
		if word := &e.lines[p].step; !reached(atomic.LoadUint32(word), e.step) && !spinUntil(word, e.step, e.wait.turns) {
			if err := e.waitLong(ctx, word); err != nil {
				return err
			}
		}
	}
	e.op.waiting = false
	return nil
}

// linger spins or yields for a while and reports whether word reached target.
func (w *waiter) linger(word *uint32, target uint32) bool {
	if w.turns > 0 {
		return w.spin(word, target)
	}
	for i := range w.yields {
		yieldCore()
		// The runtime wakes a thread whenever a goroutine steps back, which costs far more than a yield.
		if w.shared || i%goschedEvery == goschedEvery-1 {
			runtime.Gosched()
		}
		if reached(atomic.LoadUint32(word), target) {
			w.yields = min(w.yields*2, maxYields)
			return true
		}
	}
	w.yields = max(w.yields/2, minYields)
	return false
}

// spin spins for a while, and now and then only when that was in vain lately: the machine may be busy with others, or the
// ranks with long computations.
func (w *waiter) spin(word *uint32, target uint32) bool {
	if w.skip > 0 {
		w.skip--
		return false
	}
	for start := time.Now(); time.Since(start) < spinLimit; {
		if spinUntil(word, target, spinTurns) {
			w.misses = 0
			return true
		}
	}
	w.misses = min(w.misses+1, maxMisses)
	w.skip = 1<<w.misses - 1
	return false
}

// waitLong lingers, then sleeps, until word reaches the current step.
func (e *Engine) waitLong(ctx context.Context, word *uint32) error {
	if e.wait.linger(word, e.step) {
		return nil
	}
	line := (*syncLine)(nil)
	for _, p := range e.peers {
		if &e.lines[p].step == word {
			line = e.lines[p]
		}
	}
	for {
		now := time.Now()
		err := e.trouble(ctx, now)
		if reached(atomic.LoadUint32(word), e.step) {
			return nil // what was awaited happened, whatever else did
		}
		if err != nil {
			return err
		}
		slice := sleepSlice
		if d := e.deadline; !d.IsZero() {
			slice = min(slice, d.Sub(now))
		}
		if d, ok := ctx.Deadline(); ok {
			slice = min(slice, d.Sub(now))
		}
		moment.At("shm.wait.sleep")
		sleepBelow(word, &line.sleepers, e.step, slice)
	}
}

// sleepBelow sleeps while word has not reached target, at most for a time. Whoever moves word looks at sleepers after it.
func sleepBelow(word, sleepers *uint32, target uint32, limit time.Duration) {
	atomic.AddUint32(sleepers, 1)
	if v := atomic.LoadUint32(word); !reached(v, target) {
		futexWait(word, v, limit)
	}
	atomic.AddUint32(sleepers, ^uint32(0))
}
