// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcslots

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// turns is a reader for tests: it counts as a link does, and notes when its reading was handed over.
type turns struct {
	mu     sync.Mutex
	turn   uint64
	handed []uint64
}

func (r *turns) Turn() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turn
}

func (r *turns) Handover(turn uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if turn%2 == 0 || r.turn != turn {
		return
	}
	r.turn++
	r.handed = append(r.handed, turn)
}

// dispatch runs fn as the handler of the next turn.
func (r *turns) dispatch(in *Inline, fn func()) {
	r.mu.Lock()
	r.turn |= 1
	turn := r.turn
	r.mu.Unlock()
	in.Do(fn)
	r.mu.Lock()
	if r.turn == turn {
		r.turn++
	}
	r.mu.Unlock()
}

func (r *turns) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.handed)
}

// Another goroutine reads on when a handler takes long, and not before.
func TestInlineGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &turns{}
		in := NewInline(r, LinkGuard)
		for range 1000 {
			r.dispatch(in, func() { time.Sleep(LinkGuard / 4) })
		}
		if n := r.count(); n != 0 {
			t.Errorf("%d hand-overs for short handlers", n)
		}
		r.dispatch(in, func() { time.Sleep(3 * LinkGuard) })
		if n := r.count(); n != 1 {
			t.Errorf("%d hand-overs for a long handler", n)
		}
		r.dispatch(in, func() { time.Sleep(LinkGuard / 4) })
		if n := r.count(); n != 1 {
			t.Errorf("%d hand-overs afterwards", n)
		}
		time.Sleep(10 * LinkGuard) // the guard stops without traffic
		if in.armed.Load() {
			t.Error("the guard goes on without traffic")
		}
	})
}

// Another goroutine reads on when a handler ends the goroutine that read.
func TestInlineGoexit(t *testing.T) {
	r := &turns{}
	in := NewInline(r, time.Hour)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.dispatch(in, runtime.Goexit)
	}()
	<-done
	in.guard.Stop()
	if n := r.count(); n != 1 {
		t.Errorf("%d hand-overs", n)
	}
}

// What recent handlers took decides whether the next one runs where it was read: a long one is forgotten slowly where any of them
// may hold others up, and only the average counts where the question is what side by side is worth.
func TestInlineCost(t *testing.T) {
	in := &Inline{limit: LinkGuard}
	if !in.Brief() || !in.Short() {
		t.Error("a new connection has long handlers")
	}
	in.RecordDuration(time.Millisecond)
	if in.Brief() || in.Short() {
		t.Error("a long handler was not noted")
	}
	n := 0
	for ; !in.Brief(); n++ {
		in.RecordDuration(0)
	}
	if n < 10 || n > 50 {
		t.Errorf("handlers are brief again after %d", n)
	}
	for ; !in.Short(); n++ {
		in.RecordDuration(0)
	}
	if n < 10 || n > 100 {
		t.Errorf("it was forgotten after %d short ones", n)
	}
	brief := 0
	for i := range 1000 {
		if in.RecordDuration(briefLimit / 2); i%100 == 99 {
			in.RecordDuration(10 * briefLimit)
		}
		if in.Brief() {
			brief++
		}
	}
	if brief < 900 {
		t.Errorf("%d of 1000 handlers of %v are brief when one of a hundred takes %v", brief, briefLimit/2, 10*briefLimit)
	}
	for range 100 {
		in.RecordDuration(2 * briefLimit)
	}
	if in.Brief() {
		t.Errorf("handlers of %v are brief", 2*briefLimit)
	}
}
