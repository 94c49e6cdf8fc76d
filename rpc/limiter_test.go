// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// callers are workers for the limiter; the last one is a guest.
func callers(n int) []*peer {
	all := make([]*peer, n)
	for i := range all {
		all[i] = &peer{name: string(rune('a' + i))}
	}
	return append(all, &peer{name: "guest", worker: -1})
}

func TestLimiterKeepsAShareForOthers(t *testing.T) {
	var started []*request
	l := newLimiter(8, 100, func(r *request) { started = append(started, r) })
	who := callers(2)
	enter := func(p *peer) (now, ok bool) { return l.enter(&request{peer: p}) }
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
	l.leave(who[0]) // six of eight are left: the greedy one cannot have more, the guest can
	if len(started) != 1 || started[0].peer != who[2] {
		t.Errorf("the next is %v", started)
	}
	l.leave(who[1])
	l.leave(who[1])
	if running, _ := l.counts(); running != 6 || len(started) != 1+0 {
		// five of the first caller and the guest run; the first caller may fill up to six
		t.Errorf("%d run, %d were started", running, len(started))
	}
}

func TestLimiterTakesTurns(t *testing.T) {
	var started []*request
	l := newLimiter(1, 100, func(r *request) { started = append(started, r) })
	who := callers(2)
	if now, _ := l.enter(&request{peer: who[0]}); !now {
		t.Fatal("no place")
	}
	for range 5 {
		l.enter(&request{peer: who[0]})
	}
	l.enter(&request{peer: who[1]})
	l.leave(who[0])
	l.leave(started[0].caller())
	if len(started) != 2 || started[0].peer != who[0] || started[1].peer != who[1] {
		t.Errorf("started %d", len(started))
	}
}

func TestLimiterRefuses(t *testing.T) {
	l := newLimiter(1, 8, func(*request) {})
	who := callers(2)
	l.enter(&request{peer: who[0]})
	for i := range 10 {
		if _, ok := l.enter(&request{peer: who[0]}); ok != (i < 6) {
			t.Errorf("request %d of one caller: %v", i, ok)
		}
	}
	for i := range 4 {
		if _, ok := l.enter(&request{peer: who[1]}); ok != (i < 2) {
			t.Errorf("request %d of the other: %v", i, ok)
		}
	}
}

// Random callers come, wait, resume, leave: the counts are right, nobody waits while there is room, all end.
func TestLimiterAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var running []*place
		var l *limiter
		run := func(r *request) { running = append(running, &place{l: l, who: r.caller()}) }
		l = newLimiter(1+rng.IntN(8), 1000, run)
		who := callers(3)
		entered, ended, paused := 0, 0, map[*place]int{}
		for range 500 {
			switch k := rng.IntN(6); {
			case k < 2:
				r := &request{peer: who[rng.IntN(len(who))]}
				entered++
				if now, _ := l.enter(r); now {
					run(r)
				}
			case len(running) == 0:
			default:
				i := rng.IntN(len(running))
				p := running[i]
				switch {
				case k == 2:
					p.pause()
					paused[p]++
				case k == 3 && paused[p] > 0:
					p.resume()
					paused[p]--
				case k == 4 && rng.IntN(4) == 0:
					p.abandon()
				case k == 5:
					running = append(running[:i], running[i+1:]...)
					p.end()
					ended++
				}
			}
		}
		for len(running) > 0 {
			p := running[0]
			running = running[1:]
			p.end()
			ended++
		}
		if n, waiting := l.counts(); n != 0 || waiting != 0 || entered != ended || l.mu.abandoned != 0 || len(l.mu.of) != 0 {
			t.Fatalf("seed %d: %d run, %d wait, %d entered, %d ended, %d abandoned, %v", seed, n, waiting, entered, ended, l.mu.abandoned, l.mu.of)
		}
	}
}

// One caller fills all the places that it can get with handlers that do not return: another one is served at once.
func TestGreedyCaller(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	agents := world(t, 3, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.hold", func() { <-release }).MustHandle("t.quick", func() int { return 7 })
	}, WithConcurrency(8))
	ctx := testContext(t)
	for range 100 {
		Async[any](ctx, agents[0], "w1", "t.hold")
	}
	for running := 0; running < 6; {
		running, _ = agents[1].limiter.counts()
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for range 20 {
		if got, err := Call[int](short, agents[2], "w1", "t.quick"); err != nil || got != 7 {
			t.Fatalf("%v, %v", got, err)
		}
	}
}

// A handler that does not return although its caller has gone loses its place in the end.
func TestOverdueHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{name: "w", cfg: &config{logger: testLogger()}}
		l := newLimiter(1, 10, func(*request) {})
		r := &request{peer: &peer{}}
		if now, _ := l.enter(r); !now {
			t.Fatal("no place")
		}
		r.place.l, r.place.who = l, r.caller()
		r.ctx.begin(t.Context(), a, time.Time{}, &r.place)
		r.ctx.cancel(errGivenUp)
		time.Sleep(overdueAfter - time.Millisecond)
		if n, _ := l.counts(); n != 1 {
			t.Error("its place was taken too early")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n, _ := l.counts(); n != 0 || l.mu.abandoned != 1 {
			t.Errorf("%d places are taken, %d handlers are abandoned", n, l.mu.abandoned)
		}
		r.place.end() // it returns after all
		r.ctx.cancel(errHandlerDone)
		if n, _ := l.counts(); n != 0 || l.mu.abandoned != 0 {
			t.Errorf("%d places are taken, %d handlers are abandoned", n, l.mu.abandoned)
		}
	})
}
