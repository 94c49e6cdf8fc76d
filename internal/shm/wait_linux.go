// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// A turn of the spin loop is a pause instruction, 10 to 60 ns.
	spinTurns = 100
	// yields that a rank tries before it sleeps: few when sleeping turned out to be right, many when not.
	minYields, maxYields = 4, 256
	// sleepSlice is how often a sleeper looks for what no futex reports: a dead rank, the end of a context.
	sleepSlice = 40 * time.Millisecond
)

func reached(step, target uint32) bool { return int32(step-target) >= 0 } //nolint:gosec // wrap-around order is the point

// waiter is the state of waiting; only the goroutine that runs the operation uses it.
type waiter struct {
	turns  int // spins before the first yield; none with more ranks than cores
	yields int // yields before sleeping, adapted

	beats   []uint64        // the last heartbeat seen of each rank
	still   []time.Duration // for how long it has not changed, as far as this rank was awake to see
	checked []time.Time
}

func newWaiter(ranks int) waiter {
	w := waiter{
		yields: maxYields, beats: make([]uint64, ranks), still: make([]time.Duration, ranks), checked: make([]time.Time, ranks),
	}
	if ranks <= runtime.NumCPU() {
		w.turns = spinTurns
	}
	return w
}

// advance publishes everything written so far as this rank's next step and returns when all ranks have taken it.
func (e *Engine) advance(ctx context.Context) error {
	e.step++
	me := e.lines[e.rank]
	atomic.StoreUint32(&me.step, e.step)
	if atomic.LoadUint32(&me.sleepers) != 0 {
		futexWake(&me.step)
	}
	for _, p := range e.peers {
		if word := &e.lines[p].step; !reached(atomic.LoadUint32(word), e.step) && !spinUntil(word, e.step, e.wait.turns) {
			if err := e.waitLong(ctx, word); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitLong yields, then sleeps, until word reaches the current step.
func (e *Engine) waitLong(ctx context.Context, word *uint32) error {
	w := &e.wait
	for range w.yields {
		yieldCore()
		runtime.Gosched() // in case the other rank is a goroutine of this process
		if reached(atomic.LoadUint32(word), e.step) {
			w.yields = min(w.yields*2, maxYields)
			return nil
		}
	}
	w.yields = max(w.yields/2, minYields)
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
		atomic.AddUint32(&line.sleepers, 1)
		if v := atomic.LoadUint32(word); !reached(v, e.step) {
			futexWait(word, v, slice)
		}
		atomic.AddUint32(&line.sleepers, ^uint32(0))
	}
}
