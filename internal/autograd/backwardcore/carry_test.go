// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
)

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
