// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
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

// TestLateGradientOfAFailedPass: in a pass with PyTorch workers, which has no id, one of two gradients comes, and then the pass
// fails. The other one comes late. It must not begin a pass: that would not end before its deadline.
func TestLateGradientOfAFailedPass(t *testing.T) {
	for name, fail := range map[string]func(m *Machine[int64], ctx Context){
		"a function fails": func(m *Machine[int64], ctx Context) { m.Failed(ctx, NoID, Cause{Text: "it fails"}) },
		"another worker says so": func(m *Machine[int64], ctx Context) {
			m.Receive(Message[int64]{Kind: Fail, From: 2, Context: ctx, Pass: NoID, Mode: Foreign, Cause: Cause{Text: "it fails"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(0, sum, Options{})
			ctx := m.Open()
			leaf, _ := m.Record(ctx)
			first, _ := m.RecordSend(ctx, 1, leaf)
			second, _ := m.RecordSend(ctx, 1, leaf)
			m.Meet(ctx, 2)
			grad := func(call Call) (failed *Cause) {
				m.Receive(Message[int64]{Kind: Grad, From: 1, Context: ctx, Pass: NoID, Mode: Foreign, Call: call, Gradient: 1})
				for _, e := range m.Take() {
					if e.Kind == Send && e.Msg.Kind == Fail && e.Msg.To == 1 {
						failed = &e.Msg.Cause
					}
				}
				return failed
			}
			if failed := grad(first); failed != nil || !m.Runs(ctx, NoID) {
				t.Fatalf("the pass does not begin: %+v", failed)
			}
			fail(m, ctx)
			m.Take()
			if failed := grad(second); failed == nil || failed.Text != "it fails" || m.Runs(ctx, NoID) {
				t.Errorf("the late gradient: refused because of %+v, and a pass runs: %v", failed, m.Runs(ctx, NoID))
			}
			// Now both have come: what comes again is of the next pass.
			if failed := grad(second); failed != nil || !m.Runs(ctx, NoID) {
				t.Errorf("the next pass: refused because of %+v", failed)
			}
		})
	}
}

// TestFailureComesBeforeTheGradient: a worker learns of the failure of a pass that has not reached it.
func TestFailureComesBeforeTheGradient(t *testing.T) {
	m := New(0, sum, Options{})
	ctx := m.Open()
	leaf, _ := m.Record(ctx)
	call, _ := m.RecordSend(ctx, 1, leaf)
	fail := Message[int64]{Kind: Fail, From: 1, Context: ctx, Pass: NoID, Mode: Foreign, Cause: Cause{Text: "it fails"}}
	grad := Message[int64]{Kind: Grad, From: 1, Context: ctx, Pass: NoID, Mode: Foreign, Call: call, Gradient: 1}
	m.Receive(fail)
	if m.Receive(grad); m.Runs(ctx, NoID) {
		t.Error("the late gradient begins a pass")
	}
	m.Receive(fail)
	if _, ok := m.Backward(ctx, map[Node]int64{leaf: 1}, Foreign); !ok {
		t.Fatal("the next pass does not begin")
	}
	if m.Receive(grad); len(m.Missing(ctx, NoID)) > 0 {
		t.Error("a pass that this worker has begun is refused its gradient")
	}
}

// TestPeerBack: a PyTorch worker that comes in the place of one that has gone numbers its contexts from the beginning again.
func TestPeerBack(t *testing.T) {
	m := New(0, sum, Options{})
	id, other := Context{1, 0}, Context{2, 0}
	for _, x := range []Context{id, other} {
		if _, ok := m.Record(x); !ok {
			t.Fatal("no context")
		}
		m.Receive(Message[int64]{Kind: Cleanup, From: x.Origin, Context: x})
	}
	m.PeerBack(1)
	if _, ok := m.Record(id); ok {
		t.Error("a late message revives a context of a worker that has been there all the time")
	}
	m.PeerDied(1)
	m.PeerBack(1)
	if _, ok := m.Record(id); !ok {
		t.Error("the successor cannot open a context with the number of one that is over")
	}
	if _, ok := m.Record(other); ok {
		t.Error("the context of another worker is revived")
	}
}

// TestOpenerIsNotCleaned: a clean-up that others began, because the worker that opened the context leaves, does not
// reach that worker: until it has left it is within the context.
func TestOpenerIsNotCleaned(t *testing.T) {
	m := New(0, sum, Options{})
	id := Context{1, 0}
	for _, w := range []Worker{1, 2, 3} {
		if !m.Meet(id, w) {
			t.Fatal("no context")
		}
	}
	m.Take()
	m.Receive(Message[int64]{Kind: Cleanup, From: 2, Context: id})
	told := map[Worker]bool{}
	for _, e := range m.Take() {
		if e.Kind == Send && e.Msg.Kind == Cleanup {
			told[e.Msg.To] = true
		}
	}
	if !told[3] || told[1] || len(told) != 1 {
		t.Errorf("told %v, want 3", told)
	}
}

// TestAnswersCarryMessages: a value goes to another worker and a number of times back and forth. In the pass each message but the
// first goes with an answer, or takes one along: PyTorch's way needs an answer for each.
func TestAnswersCarryMessages(t *testing.T) {
	t.Run("carried", func(t *testing.T) { testMessages(t, 1) })
	t.Run("each answered", func(t *testing.T) {
		if mutation.With(t, "NoCarry") {
			testMessages(t, 2)
			for seed := range uint64(60) {
				if err := simulate(seed+1, Options{}, Mode(seed%2), func(string, ...any) {}); err != nil {
					t.Errorf("seed %d: %v", seed+1, err)
				}
			}
		}
	})
}

// testMessages counts the messages of passes, in which there are some for each transfer.
func testMessages(t *testing.T, each int) {
	t.Helper()
	for _, hops := range []int{1, 2, 8} {
		for _, mode := range []Mode{Fast, Smart} {
			w := newWorld(1, Options{Retry: time.Hour}, mode, func(string, ...any) {})
			w.lossy, w.crashes, w.breaks = false, false, false
			w.ctx = w.origin.m.Open()
			a, b := w.origin, w.workers[1]
			w.record(a)
			for range hops {
				w.transfer(a, b, a.values[len(a.values)-1])
				w.transfer(b, a, w.record(b, b.values[len(b.values)-1]))
			}
			if _, ok := a.m.Backward(w.ctx, map[Node]int64{w.record(a, a.values[len(a.values)-1]): 1}, mode); !ok {
				t.Fatal("the pass does not begin")
			}
			w.settle(a)
			if !w.until(time.Minute, func() bool { return len(w.ended) == 1 }) || w.ended[0].Failed {
				t.Fatalf("the pass has ended with %+v", w.ended)
			}
			waves := 1
			if mode == Smart {
				waves = 2
			}
			want := 2 * hops * waves * each
			if got := w.sent[Mark] + w.sent[Grad] + w.sent[Done]; got != want {
				t.Errorf("%d hops, mode %d: %d messages, want %d: %v", hops, mode, got, want, w.sent)
			}
		}
	}
}

// TestTooManyPasses: who sends a message of one pass too many is told so.
func TestTooManyPasses(t *testing.T) {
	m := New(0, sum, Options{})
	ctx := m.Open()
	leaf, _ := m.Record(ctx)
	call, _ := m.RecordSend(ctx, 1, leaf)
	other, _ := m.RecordSend(ctx, 1, leaf) // its gradient does not come: no pass ends
	_ = other
	for n := range uint64(maxPasses) + 1 {
		m.Receive(Message[int64]{Kind: Grad, From: 1, Context: ctx, Pass: PassID{1, n}, Mode: Fast, Call: call, Gradient: 1})
		for _, e := range m.Take() {
			if told := e.Kind == Send && e.Msg.Kind == Fail; told != (n == maxPasses) {
				t.Fatalf("pass %d: %+v", n, e)
			}
		}
	}
}
