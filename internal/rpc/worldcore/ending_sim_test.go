// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/mutation"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

func TestMain(m *testing.M) { os.Exit(mutation.Main(m)) }

// TestMutants leaves one rule of a protocol out at a time: the simulations must notice.
func TestMutants(t *testing.T) {
	t.Parallel()
	mutation.Found(t)
}

// endSim is a static world that comes to its end: workers, Go and PyTorch, that call each other until they have had enough, with
// handlers that call on, a store that may end with its host, deaths and lost connections.
type endSim struct {
	*sim
	round   int
	hosted  bool // the first worker hosts the store
	late    bool // the store is
	workers []*leaver
	budget  int // how many more calls will be made
	died    []string
	gave    []string // they have given up
}

// leaver is a worker of it.
type leaver struct {
	*proc
	w       *endSim
	guard   guard
	under   int // calls under way
	frozen  bool
	blocked []func() // calls that may not begin
	idle    []func() // who waits for all calls to have ended
	n       int      // a PyTorch worker's barriers
	patient time.Duration
	begun   time.Duration
	over    bool
	err     error
	ended   time.Duration
}

// trouble is what happens in a world.
type trouble uint8

const (
	delays trouble = iota // workers and the store are slow
	deaths
	giveUp // a worker has little time
	atOnce // a worker dies on the way to the last barrier, and the store does not answer for a while
	troubles
)

func newEndSim(seed uint64, kind trouble) *endSim {
	w := &endSim{sim: newSim(seed)}
	w.round, w.hosted = 2*w.rng.IntN(2), w.rng.IntN(2) == 0
	size, kinds := 2+w.rng.IntN(4), w.rng.IntN(3)
	counted := 0
	if w.round > 0 {
		counted = w.rng.IntN(100)
	}
	for i := range size {
		g := &leaver{proc: w.process(fmt.Sprintf("w%d", i), i != 1 && w.rng.IntN(4) < kinds), w: w, n: counted + 1, patient: timeout}
		w.workers = append(w.workers, g)
	}
	w.budget = 200
	early, late := 2*time.Second, 4*time.Second
	if w.rng.IntN(2) == 0 { // all of them at once
		early, late = 2*w.latest, 2*w.latest
	}
	for _, g := range w.workers {
		for range w.rng.IntN(6) {
			w.after(w.within(early), func() {
				if g.begun == 0 {
					g.call(func() {})
				}
			})
		}
		w.after(w.within(late), func() { g.leave() })
	}
	if w.late = w.rng.IntN(4) == 0 || kind == delays; w.late {
		for range w.rng.IntN(8) { // a worker is slow for a while
			g := w.workers[w.rng.IntN(size)]
			w.after(w.within(late+20*w.latest), func() { g.asks = w.now + w.within(20*w.latest) })
		}
		w.after(w.within(4*time.Second), func() { w.stalled = w.now + w.within(time.Second) })
	}
	switch kind {
	case giveUp:
		w.workers[1].patient = w.within(time.Second)
	case atOnce:
		w.late, w.changes = true, w.failAtOnce
	case deaths:
		for range 1 + w.rng.IntN(2) {
			g := w.workers[w.rng.IntN(size)]
			at := w.within(6 * time.Second)
			w.after(at, func() { w.death(g) })
		}
	}
	for range w.rng.IntN(4) {
		a, b := w.names[w.rng.IntN(size)], w.names[w.rng.IntN(size)]
		w.after(w.within(4*time.Second), func() { w.cut(a, b) })
	}
	return w
}

// failAtOnce waits for the first worker on its way to the last barrier.
func (w *endSim) failAtOnce(key, _, _ string) {
	if key != at(w.round, KeyOver) {
		return
	}
	w.changes = nil
	w.after(w.within(w.latest), func() { w.death(w.workers[w.rng.IntN(len(w.workers))]) })
	w.after(w.within(4*w.latest), func() { w.stalled = w.now + w.within(2*silentFor) })
}

// death ends a worker that has not left.
func (w *endSim) death(g *leaver) {
	if g.dead {
		return
	}
	w.died = append(w.died, g.name)
	g.exit()
}

// exit ends the process of a worker, and the store with it if it has hosted it.
func (g *leaver) exit() {
	g.w.kill(g.proc)
	if g.w.hosted && g.name == g.w.names[0] {
		g.w.loseStore()
	}
}

// call makes a call, when it may begin. then is called when it has begun.
func (g *leaver) call(then func()) {
	w := g.w
	if g.dead || w.budget == 0 {
		then()
		return
	}
	if g.frozen {
		g.blocked = append(g.blocked, func() { g.call(then) })
		return
	}
	w.budget--
	to, nested := w.workers[w.rng.IntN(len(w.workers))], max(w.rng.IntN(4)-1, 0)
	slow := []time.Duration{w.latest / 10, w.latest, 10 * w.latest}[w.rng.IntN(3)]
	g.under++
	w.note("%s calls %s", g.name, to.name)
	var handle func()
	handle = func() {
		if nested > 0 && !to.dead {
			nested--
			to.call(func() { w.after(w.within(slow), handle) })
			return
		}
		w.note("%s is answered by %s", g.name, to.name)
		if g.under--; g.under == 0 {
			for _, wake := range g.idle {
				wake()
			}
			g.idle = nil
		}
	}
	w.after(w.within(slow), handle)
	then()
}

func (g *leaver) leave() {
	w := g.w
	if g.dead {
		return
	}
	g.begun = w.now
	if g.py {
		g.torch()
		return
	}
	others := except(w.names, g.name)
	mixed := slices.ContainsFunc(w.workers, func(x *leaver) bool { return x.py })
	m := NewEnding(g.self(), w.round, others, mixed)
	deadline := w.now + g.patient
	w.start(&task{p: g.proc, what: "end", m: m, do: g.do, deadline: deadline, then: func() {
		if m.Err() == nil {
			w.checkMet(g, m.n)
		}
		g.end(m.Err())
	}})
}

// checkMet holds that a worker ends well only if everybody has come to the end and had no calls, and if all have met in
// the last barrier: unless the store is gone, which ends with its host.
func (w *endSim) checkMet(g *leaver, last int) {
	if came := w.store[at(w.round, countKey(last-1))]; came != strconv.Itoa(len(w.workers)) {
		w.fault("%s ends well, and %q workers have come to the end", g.name, came)
	}
	if _, met := w.store[at(w.round, readyKey(last))]; !met && !w.gone {
		w.fault("%s ends well, and the others have not come", g.name)
	}
}

func (g *leaver) self() Self { return Self{Name: g.name, Size: len(g.w.workers)} }

// except returns the names of the others.
func except(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(x string) bool { return x == name })
}

// do does what the machine asks for.
func (g *leaver) do(op Op, answer func(Event)) {
	ev := Event{}
	switch op.Kind {
	case OpIdle:
		g.whenIdle(func() { answer(ev) })
		return
	case OpFreeze:
		ev.N, g.frozen = g.under, true
	case OpThaw:
		g.thaw()
	case OpWatch:
		g.guard.begin(g.w.sim, g.proc, g.self(), g.w.round, op, answer)
		return
	case OpUnwatch:
		ev = g.guard.end()
	default:
		panic(op.Kind)
	}
	answer(ev)
}

func (g *leaver) whenIdle(then func()) {
	if g.under == 0 {
		then()
		return
	}
	g.idle = append(g.idle, then)
}

func (g *leaver) thaw() {
	g.frozen = false
	blocked := g.blocked
	g.blocked = nil
	for _, begin := range blocked {
		begin()
	}
}

// torch is the end of a PyTorch worker, which watches no other worker.
func (g *leaver) torch() {
	w := g.w
	ask := func(op Op, next func(Event)) {
		op.Round = w.round
		w.ask(g.proc, op, func(ev Event) {
			switch {
			case g.dead:
			case ev.Err != nil:
				g.left(ev.Err)
			default:
				next(ev)
			}
		})
	}
	barrier := func(add int, then func(sum int)) {
		n := g.n
		g.n++
		passed := func(Event) { ask(Op{Kind: OpAdd, Key: activeKey(n)}, func(ev Event) { then(ev.N) }) }
		ask(Op{Kind: OpAdd, Key: activeKey(n), N: add}, func(Event) {
			ask(Op{Kind: OpAdd, Key: countKey(n), N: 1}, func(ev Event) {
				if ev.N == len(w.workers) {
					ask(Op{Kind: OpSet, Key: readyKey(n)}, passed)
					return
				}
				ask(Op{Kind: OpWait, Keys: []string{readyKey(n)}}, passed)
			})
		})
	}
	var round func()
	round = func() {
		g.whenIdle(func() {
			barrier(0, func(int) {
				g.frozen = true
				barrier(g.under, func(sum int) {
					g.thaw()
					if sum != 0 {
						round()
						return
					}
					barrier(0, func(int) { g.left(nil) })
				})
			})
		})
	}
	round()
}

// end takes the end of a Go worker, which says so if it gives up.
func (g *leaver) end(err error) {
	w := g.w
	if g.dead || !timeOver(err) || g.patient == timeout {
		g.left(err)
		return
	}
	w.gave = append(w.gave, g.name)
	loss := GivenUp(g.name, err)
	w.ask(g.proc, Op{Kind: OpSwap, Round: w.round, Key: KeyLost, Text: loss.Text()}, func(Event) { g.left(err) })
}

// left takes the end of a worker, and of its process.
func (g *leaver) left(err error) {
	w := g.w
	if g.dead {
		return
	}
	g.over, g.err, g.ended = true, err, w.now
	w.note("%s has left: %v", g.name, err)
	for _, x := range w.workers {
		if x.under > 0 && len(w.died)+len(w.gave) == 0 && err == nil {
			w.fault("%s has left while %s calls", g.name, x.name)
		}
	}
	if g.frozen && !g.py {
		w.fault("%s leaves, and its calls may not begin", g.name)
	}
	g.exit()
}

func (w *endSim) simulate() error {
	w.run(2 * timeout)
	if w.wrong != nil {
		return w.wrong
	}
	first := w.store[at(w.round, KeyLost)]
	// Without the store each names the loss that it sees: when the host has gone because of a death, and when the answer takes too long.
	noStore := (w.hosted || w.late) && len(w.died)+len(w.gave) > 0
	for _, g := range w.workers {
		dead, _ := errors.AsType[*cohort.Error](g.err)
		switch {
		case slices.Contains(w.died, g.name), slices.Contains(w.gave, g.name), g.py && len(w.died)+len(w.gave) > 0:
		case !g.over:
			return fmt.Errorf("%s waits for ever", g.name)
		case g.err == nil || noStore:
		case len(w.died) == 0 && g.py && w.hosted: // the store may end before it has read the sum of the last barrier
		case len(w.gave) > 0 && dead != nil && dead.Code == cohort.DeadlineExceeded && parseLoss(first).Worker == dead.Peer &&
			g.ended <= w.lastBegun()+slack:
		case len(w.died) == 0:
			return fmt.Errorf("no worker has died, and %s ends with %w", g.name, g.err)
		case g.ended > w.lastBegun()+slack:
			return fmt.Errorf("%s ends at %v with %w", g.name, g.ended, g.err)
		case dead == nil || dead.Code != cohort.PeerLost || !slices.Contains(w.died, dead.Peer):
			if !slices.ContainsFunc(w.workers, func(x *leaver) bool { return x.py && !slices.Contains(w.died, x.name) }) {
				return fmt.Errorf("%v have died, and %s ends with %w", w.died, g.name, g.err)
			}
		case first != dead.Peer:
			return fmt.Errorf("%s names %s, the store %q", g.name, dead.Peer, first)
		}
	}
	return nil
}

// lastBegun is when the last worker has begun to leave, or has died.
func (w *endSim) lastBegun() time.Duration {
	last := time.Duration(0)
	for _, g := range w.workers {
		last = max(last, g.begun)
		if slices.Contains(w.died, g.name) {
			last = max(last, g.died)
		}
	}
	return last
}

func TestEndingSimulation(t *testing.T) {
	t.Parallel()
	ended := map[string]int{}
	for seed := range seeds.Range(200, 410) {
		for kind := range troubles {
			w := holds(t, fmt.Sprintf("seed %d, trouble %d", seed, kind), func() *endSim { return newEndSim(seed, kind) })
			for _, g := range w.workers {
				switch {
				case g.over && g.err == nil:
					ended["in order"]++
				case len(w.gave) > 0 && !slices.Contains(w.gave, g.name) && cohort.CodeOf(g.err) == cohort.DeadlineExceeded:
					ended["told that another gave up"]++
				case g.over:
					ended[cohort.CodeOf(g.err).String()]++
				}
			}
		}
	}
	t.Log(ended)
	if ended["in order"] == 0 || ended["told that another gave up"] == 0 || ended[cohort.PeerLost.String()] == 0 {
		t.Errorf("the simulation does not reach everything: %v", ended)
	}
}

// TestEndingDeadlines: when the time of a worker is over, at whatever moment, it does not end as if all had come.
func TestEndingDeadlines(t *testing.T) {
	t.Parallel()
	// In the first the time is over when a worker is found gone, before the store has told whether it had come to its end.
	for seed := range seeds.Range(200, 7524) {
		w := newEndSim(seed, trouble(seed%uint64(troubles)))
		for _, g := range w.workers {
			g.patient = 1 + w.within(8*time.Second)
		}
		w.run(2 * timeout)
		for _, g := range w.workers {
			if w.wrong == nil && !g.py && !g.over && !slices.Contains(w.died, g.name) {
				w.fault("%s waits for ever", g.name)
			}
		}
		if w.wrong != nil {
			t.Fatalf("seed %d: %v", seed, w.wrong)
		}
	}
}

// The first barrier of a world's end is found wherever PyTorch's count has got to.
func TestFirstBarrier(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 4, 7, 8, 71, 300} {
		s := newSim(uint64(n))
		s.process("a", false)
		s.process("b", true)
		e := NewEnding(Self{Name: "a", Size: 2}, 2, []string{"b"}, true)
		s.after(10*time.Millisecond, func() { s.put(at(2, activeKey(n)), "0") })
		idle := 0
		g := &guard{}
		s.start(&task{p: s.procs["a"], what: "end", m: e, do: func(op Op, answer func(Event)) {
			switch op.Kind {
			case OpWatch:
				g.begin(s, s.procs["a"], Self{Name: "a", Size: 2}, 2, op, answer)
			case OpIdle:
				idle = e.n
			}
		}})
		s.run(timeout)
		if idle != n {
			t.Errorf("barrier %s is taken for barrier %d", strconv.Itoa(n), idle)
		}
	}
}
