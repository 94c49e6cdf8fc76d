// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"
)

// failing runs one seed in which a function fails, or a worker dies, at some moment of a pass, over connections that lose
// nothing: a message takes at most 50 ms, and every worker notices a death within 500 ms. It returns how long after that, in
// virtual time, a live worker was last in the pass, and whether anything failed at all.
func failing(seed uint64, opt Options, mode Mode) (took Time, failed bool, err error) {
	w := newWorld(seed, opt, mode, func(string, ...any) {})
	w.lossy, w.breaks, w.crashes = false, seed%2 == 0, seed%2 == 1
	w.slowest, w.noticed = 50*time.Millisecond, [2]Time{0, 500 * time.Millisecond}
	roots := w.forward()
	if w.breaks {
		live := slices.SortedFunc(maps.Keys(w.oracle(roots)),
			func(a, b at) int { return int(a.w)*10_000 + int(a.n) - int(b.w)*10_000 - int(b.n) })
		w.failing[pick(w.rng, live)] = true
	}
	if _, ok := w.origin.m.Backward(w.ctx, roots, mode); !ok {
		return 0, false, errors.New("the pass does not begin")
	}
	w.settle(w.origin)
	if w.crashes {
		w.later(time.Duration(w.rng.Int64N(1000))*time.Millisecond, func() { w.crash(pick(w.rng, w.workers)) })
	}
	over := func() bool { return len(w.ended) > 0 || w.died[0] }
	if !w.until(time.Minute, func() bool { return over() || w.trouble > 0 }) {
		return 0, false, errors.New("the pass does not end")
	}
	if w.trouble == 0 {
		return 0, false, nil // it ended before the death, or the worker had no part in it
	}
	last := w.trouble // when a worker was last seen in the pass; a message that is on its way may still bring one into it
	w.until(3*time.Second, func() bool {
		if !over() || w.running() {
			last = w.now
		}
		return false
	})
	return last - w.trouble, true, nil
}

// TestFailureEndsWithinASecond: wherever a function fails or a worker dies, and whenever, the pass ends at every worker within
// a second. The time is that of the simulation, so it holds on a busy machine, too.
func TestFailureEndsWithinASecond(t *testing.T) {
	t.Parallel()
	failures, slowest := 0, Time(0)
	for seed := range uint64(240) {
		mode := Mode(seed / 2 % 2)
		took, failed, err := failing(seed+1, Options{}, mode)
		if err != nil || took > time.Second {
			t.Fatalf("seed %d, mode %d: it took %v: %v", seed+1, mode, took, err)
		}
		if failed {
			failures, slowest = failures+1, max(slowest, took)
		}
	}
	if failures < 100 || slowest < 100*time.Millisecond {
		t.Errorf("%d failures, the slowest took %v: this proves nothing", failures, slowest)
	}
	t.Logf("%d failures, the slowest took %v", failures, slowest)
}
