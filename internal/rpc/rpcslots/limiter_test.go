// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcslots

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// caller is a request of one caller.
type caller struct{ who any }

func (c *caller) Caller() any { return c.who }

// callers are workers for the limiter; the last one is a client.
func callers(n int) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = string(rune('a' + i))
	}
	return append(all, nil)
}

func TestLimiterKeepsAShareForOthers(t *testing.T) {
	var started []Task
	l := New(8, 100, func(t Task) { started = append(started, t) })
	who := callers(2)
	enter := func(who any) (now, ok bool) { return l.Enter(&caller{who}) }
	for i := range 20 {
		now, ok := enter(who[0])
		if !ok || now != (i < 6) {
			t.Fatalf("request %d of one caller: now %v, ok %v", i, now, ok)
		}
	}
	for i := range 2 {
		if now, _ := enter(who[1]); !now {
			t.Errorf("request %d of another caller waits", i)
		}
	}
	if now, _ := enter(who[2]); now {
		t.Error("there is a ninth place")
	}
	l.Leave(who[0]) // six of eight are left: the greedy one cannot have more, the client can
	if len(started) != 1 || started[0].Caller() != who[2] {
		t.Errorf("the next is %v", started)
	}
	l.Leave(who[1])
	l.Leave(who[1])
	if running, _ := l.Counts(); running != 6 || len(started) != 1+0 {
		// five of the first caller and the client run; the first caller may fill up to six
		t.Errorf("%d run, %d were started", running, len(started))
	}
}

func TestLimiterTakesTurns(t *testing.T) {
	var started []Task
	l := New(1, 100, func(t Task) { started = append(started, t) })
	who := callers(2)
	if now, _ := l.Enter(&caller{who[0]}); !now {
		t.Fatal("no place")
	}
	for range 5 {
		l.Enter(&caller{who[0]})
	}
	l.Enter(&caller{who[1]})
	l.Leave(who[0])
	l.Leave(started[0].Caller())
	if len(started) != 2 || started[0].Caller() != who[0] || started[1].Caller() != who[1] {
		t.Errorf("started %d", len(started))
	}
}

func TestLimiterRefuses(t *testing.T) {
	l := New(1, 8, func(Task) {})
	who := callers(2)
	l.Enter(&caller{who[0]})
	for i := range 10 {
		if _, ok := l.Enter(&caller{who[0]}); ok != (i < 6) {
			t.Errorf("request %d of one caller: %v", i, ok)
		}
	}
	for i := range 4 {
		if _, ok := l.Enter(&caller{who[1]}); ok != (i < 2) {
			t.Errorf("request %d of the other: %v", i, ok)
		}
	}
}

// placeOf is the place of a request that was started.
func placeOf(l *Limiter, t Task) *Slot {
	p := &Slot{}
	p.Take(l, t.Caller())
	return p
}

// Random callers enter, wait, resume, leave: the counts are right, no caller waits while a slot is free, all end.
func TestLimiterAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var running []*Slot
		var l *Limiter
		run := func(t Task) { running = append(running, placeOf(l, t)) }
		l = New(1+rng.IntN(8), 1000, run)
		who := callers(3)
		entered, ended, paused := 0, 0, map[*Slot]int{}
		for range 500 {
			switch k := rng.IntN(6); {
			case k < 2:
				r := &caller{who[rng.IntN(len(who))]}
				entered++
				if now, _ := l.Enter(r); now {
					run(r)
				}
			case len(running) == 0:
			default:
				i := rng.IntN(len(running))
				p := running[i]
				switch {
				case k == 2:
					p.Pause()
					paused[p]++
				case k == 3 && paused[p] > 0:
					p.Resume()
					paused[p]--
				case k == 4 && rng.IntN(4) == 0:
					p.abandon()
				case k == 5:
					running = append(running[:i], running[i+1:]...)
					p.End()
					ended++
				}
			}
		}
		for len(running) > 0 {
			p := running[0]
			running = running[1:]
			p.End()
			ended++
		}
		if n, waiting := l.Counts(); n != 0 || waiting != 0 || entered != ended || l.mu.abandoned != 0 || len(l.mu.of) != 0 {
			t.Fatalf("seed %d: %d run, %d wait, %d entered, %d ended, %d abandoned, %v", seed, n, waiting, entered, ended,
				l.mu.abandoned, l.mu.of)
		}
	}
}

// overdue counts how often an owner was told.
type overdue chan struct{}

func (o overdue) Overdue() { o <- struct{}{} }

// A handler that does not return although its caller has gone loses its place in the end.
func TestOverdueHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1, 10, func(Task) {})
		who := "w"
		if now, _ := l.Enter(&caller{who}); !now {
			t.Fatal("no place")
		}
		var at Slot
		var ctx Context
		told := make(overdue, 1)
		at.Take(l, who)
		ctx.Begin(t.Context(), told, time.Time{}, &at)
		ctx.Cancel(errors.New("the caller has gone"))
		time.Sleep(overdueAfter - time.Millisecond)
		if n, _ := l.Counts(); n != 1 {
			t.Error("its place was taken too early")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n, _ := l.Counts(); n != 0 || l.mu.abandoned != 1 || len(told) != 1 {
			t.Errorf("%d places are taken, %d handlers are abandoned, the owner was told %d times", n, l.mu.abandoned, len(told))
		}
		at.End() // it returns after all
		ctx.Cancel(ErrDone)
		if n, _ := l.Counts(); n != 0 || l.mu.abandoned != 0 {
			t.Errorf("%d places are taken, %d handlers are abandoned", n, l.mu.abandoned)
		}
	})
}
