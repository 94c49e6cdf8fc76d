// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var seeds = flag.Int("seeds", 400, "how many worlds to simulate")

// endSim is a static world that comes to its end: workers that call each other until they have had enough, with handlers that
// call on, a store whose operations take any time, deaths at any moment. One thing happens at a time, chosen by the seed.
type endSim struct {
	rng     *rand.Rand
	workers []*worker
	calls   []*call
	active  map[int]int64 // the barriers' sums
	count   map[int]int   // who has come
	ready   map[int]bool
	first   string  // the first death that somebody has found
	budget  int     // how many more calls will be made
	slow    float64 // how often handlers have to wait for everything else, for now
	died    map[string]bool
	log     []string
}

// worker is a machine with what it is doing. todo are the store operations of its action, one after the other.
type worker struct {
	name    string
	m       Ending
	step    Step
	todo    []func() bool // each reports false as long as it has to wait
	dead    bool
	over    bool // it has left
	begun   bool // it wants to leave
	frozen  bool
	outcome Step
}

// call is under way until its handler returns. A handler may call on, and need not wait for that.
type call struct {
	from, to *worker
	nested   int // how many calls its handler will still begin
}

func newEndSim(seed uint64, opt EndOptions) *endSim {
	s := &endSim{rng: rand.New(rand.NewPCG(seed, 1)), active: map[int]int64{}, count: map[int]int{}, ready: map[int]bool{}, died: map[string]bool{}}
	for i := range 2 + s.rng.IntN(4) {
		s.workers = append(s.workers, &worker{name: fmt.Sprintf("w%d", i), m: Ending{EndOptions: opt}})
	}
	s.budget = 5 + s.rng.IntN(30)
	return s
}

func (s *endSim) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *endSim) under(w *worker) int {
	n := 0
	for _, c := range s.calls {
		if c.from == w {
			n++
		}
	}
	return n
}

// begin makes a call, if it may begin now.
func (s *endSim) begin(from *worker) bool {
	if from.frozen || from.dead || from.over || s.budget == 0 {
		return false
	}
	to := s.workers[s.rng.IntN(len(s.workers))]
	if to.dead {
		return false
	}
	s.budget--
	s.calls = append(s.calls, &call{from: from, to: to, nested: s.rng.IntN(4)})
	s.note("%s calls %s", from.name, to.name)
	return true
}

// handle lets a handler go on: it calls on, or returns. It reports false when it cannot now.
func (s *endSim) handle(i int) bool {
	c := s.calls[i]
	if c.nested > 0 && s.budget > 0 && !c.to.dead {
		if c.to.frozen {
			return false
		}
		c.nested--
		s.begin(c.to)
		return true
	}
	s.calls = append(s.calls[:i:i], s.calls[i+1:]...)
	s.note("%s is answered by %s", c.from.name, c.to.name)
	return true
}

// take gives a worker's machine an event and begins its next action.
func (s *endSim) take(w *worker, ev EndEvent) {
	w.step = w.m.Step(ev)
	w.todo = nil
	n := w.step.N
	s.note("%s: %+v -> %+v", w.name, ev, w.step)
	enter := func(add func() int64) []func() bool {
		return []func() bool{
			func() bool { s.active[n] += add(); return true },
			func() bool {
				if s.count[n]++; s.count[n] == len(s.workers) {
					s.ready[n] = true
				}
				return true
			},
		}
	}
	passed := func() bool {
		if s.ready[n] {
			w.frozen = false
			s.take(w, EndEvent{Kind: Passed, Sum: s.active[n]})
		}
		return s.ready[n]
	}
	none := func() int64 { return 0 }
	switch w.step.Action {
	case FindBarrier:
		w.todo = []func() bool{func() bool { s.take(w, EndEvent{Kind: Found, N: 1}); return true }}
	case WaitIdle:
		w.todo = []func() bool{func() bool {
			idle := s.under(w) == 0
			if idle {
				s.take(w, EndEvent{Kind: Idle})
			}
			return idle
		}}
	case Meet:
		w.todo = append(enter(none), passed)
	case Count:
		own := int64(s.under(w))
		w.frozen = !w.m.NoFreeze
		w.todo = append(enter(func() int64 { return own }), passed)
	case Arrive:
		w.todo = append(enter(none), func() bool { s.take(w, EndEvent{Kind: Arrived, All: s.ready[n]}); return true })
	case WaitLast:
		w.todo = []func() bool{passed}
	case Look: // the store tells the truth, after a while in which those who live come to the barrier
		w.todo = []func() bool{func() bool {
			for _, x := range s.workers {
				if !x.dead && !x.over && x.step.Action != WaitLast && x.step.Action != Look && x.step.Action != Name && !s.ready[n] {
					return false
				}
			}
			s.take(w, EndEvent{Kind: Looked, Open: !s.ready[n]})
			return true
		}}
	case Name:
		w.todo = []func() bool{func() bool {
			if s.first == "" {
				s.first = w.step.Worker
			}
			s.take(w, EndEvent{Kind: Named, Worker: s.first})
			return true
		}}
	case End:
		w.over, w.outcome, w.frozen = true, w.step, false
	}
}

// loses tells a worker that waits for others about one that is gone. A worker that has left looks like a dead one.
func (s *endSim) loses(w, gone *worker) bool {
	if w.dead || w.over || w == gone || !gone.dead && !gone.over {
		return false
	}
	switch w.step.Action {
	case WaitIdle, Meet, Count: // nobody leaves here before this worker
		if s.first == "" {
			s.first = gone.name
		}
		w.frozen = false
		s.take(w, EndEvent{Kind: Failed, Worker: s.first})
		return true
	case WaitLast:
		s.take(w, EndEvent{Kind: Failed, Worker: gone.name})
		return true
	default:
		return false
	}
}

// step lets one thing happen. It reports false when nothing can.
func (s *endSim) happen(deaths bool) bool {
	var can []func() bool
	for _, w := range s.workers {
		if w.dead || w.over {
			continue
		}
		if !w.begun {
			can = append(can, func() bool { return s.begin(w) }, func() bool { w.begun = true; s.take(w, EndEvent{Kind: Begin}); return true })
		}
		if len(w.todo) > 0 {
			can = append(can, func() bool {
				at := w.step
				next := w.todo[0]
				if !next() {
					return false
				}
				if w.step == at && len(w.todo) > 0 { // the action goes on
					w.todo = w.todo[1:]
				}
				return true
			})
		}
		for _, gone := range s.workers {
			can = append(can, func() bool { return s.loses(w, gone) })
		}
		if deaths {
			can = append(can, func() bool {
				if s.rng.IntN(60) > 0 {
					return false
				}
				s.note("%s dies", w.name)
				w.dead, s.died[w.name] = true, true
				s.calls = slices.DeleteFunc(s.calls, func(c *call) bool { return c.from == w || c.to == w }) // they fail
				return true
			})
		}
	}
	var handlers []func() bool
	for i := range s.calls {
		handlers = append(handlers, func() bool { return i < len(s.calls) && s.handle(i) })
	}
	if s.rng.IntN(8) == 0 {
		s.slow = []float64{0, 0.5, 1}[s.rng.IntN(3)]
	}
	slow := s.rng.Float64() < s.slow
	return slow && (s.any(can) || s.any(handlers)) || !slow && s.any(append(can, handlers...))
}

// any lets one of some things happen, if one can.
func (s *endSim) any(can []func() bool) bool {
	for _, i := range s.rng.Perm(len(can)) {
		if can[i]() {
			return true
		}
	}
	return false
}

// check is the oracle after every step: nobody has left in order while a call is under way, unless somebody died.
func (s *endSim) check() error {
	if len(s.died) > 0 {
		return nil
	}
	for _, w := range s.workers {
		if w.over && w.outcome.Outcome == InOrder && len(s.calls) > 0 {
			return fmt.Errorf("%s has left while %s calls %s", w.name, s.calls[0].from.name, s.calls[0].to.name)
		}
	}
	return nil
}

// run simulates a world to its end.
func (s *endSim) run(deaths bool) error {
	for n := 0; s.happen(deaths); n++ {
		if err := s.check(); err != nil {
			return err
		}
		if n > 100_000 {
			return errors.New("it does not come to an end")
		}
	}
	for _, w := range s.workers {
		switch o := w.outcome; {
		case w.dead:
		case !w.over:
			return fmt.Errorf("%s waits for ever: %+v", w.name, w.step)
		case o.Outcome == Death && !s.died[o.Worker]:
			return fmt.Errorf("%s takes %s for dead", w.name, o.Worker)
		case o.Outcome == Death && o.Worker != s.first:
			return fmt.Errorf("%s names %s, the others %s", w.name, o.Worker, s.first)
		case o.Outcome == Failure:
			return fmt.Errorf("%s has failed", w.name)
		case len(s.died) == 0 && o.Outcome != InOrder:
			return fmt.Errorf("nobody died, and %s left with %+v", w.name, o)
		}
	}
	return nil
}

func (s *endSim) story() string {
	return strings.Join(s.log[max(0, len(s.log)-60):], "\n")
}

func TestEndingSimulation(t *testing.T) {
	t.Parallel()
	ended := map[Outcome]int{}
	for seed := range uint64(*seeds) {
		for _, deaths := range []bool{false, true} {
			s := newEndSim(seed, EndOptions{})
			if err := s.run(deaths); err != nil {
				t.Fatalf("seed %d, deaths %v: %v\n%s", seed, deaths, err, s.story())
			}
			for _, w := range s.workers {
				ended[w.outcome.Outcome]++
			}
		}
	}
	if ended[InOrder] == 0 || ended[Death] == 0 {
		t.Errorf("the simulation does not reach everything: %v", ended)
	}
}

// TestEveryPartIsNeeded: without any part of the protocol some world ends wrongly.
func TestEveryPartIsNeeded(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]EndOptions{"no meeting": {NoMeeting: true}, "no freeze": {NoFreeze: true}, "no look": {NoLook: true}} {
		found := false
		for seed := uint64(0); seed < 20_000 && !found; seed++ {
			for _, deaths := range []bool{false, true} {
				if err := newEndSim(seed, opt).run(deaths); err != nil && !found {
					found = true
					t.Logf("%s: seed %d: %v", name, seed, err)
				}
			}
		}
		if !found {
			t.Errorf("%s: nothing goes wrong", name)
		}
	}
}
