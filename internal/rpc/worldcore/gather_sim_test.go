// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// gatherSim is a static world whose workers, Go and PyTorch, do some all-gathers one after the other, while some of them die
// and connections are lost.
type gatherSim struct {
	*sim
	round    int
	gathers  int
	workers  []*gatherer
	deaths   bool
	together bool // as a world starts and ends: a worker that fails leaves
	dynamic  bool // a worker that is done leaves
	hurried  bool // the time of callers is over soon
}

// gatherer is a worker of it.
type gatherer struct {
	*proc
	w     *gatherSim
	table *Gathers
	waits map[string]func(Event) // by id
	deaf  time.Duration          // since when the connection ends whenever this PyTorch worker is asked for its count, if it does
	done  int                    // all-gathers that have ended
	tries []try
	over  bool
	left  bool // because of an error
	all   bool // what the last all-gather that was left had got is complete
}

// try is one all-gather at one worker.
type try struct {
	entered, ended time.Duration
	err            error
}

// timeout is how long callers wait, slack how long it may take at most to notice a death: connecting to everybody, two
// questions to the store, the grace, all of it slow.
const timeout, slack = 2 * time.Minute, 12 * time.Second

func newGatherSim(seed uint64, deaths bool) *gatherSim {
	w := &gatherSim{sim: newSim(seed), deaths: deaths}
	w.round, w.together = 3*w.rng.IntN(2), w.rng.IntN(2) > 0
	w.dynamic = !w.together && w.rng.IntN(2) > 0
	if w.round > 0 && !w.together { // a PyTorch worker counts an all-gather only a moment before it is in it
		w.latest = 5 * time.Millisecond
	}
	w.gathers = 1 + w.rng.IntN(3)
	size := 2 + w.rng.IntN(4)
	counted := 0
	if w.round > 0 {
		counted = w.rng.IntN(3)
	}
	kinds := w.rng.IntN(3) // Go only, both, mostly PyTorch
	for i := range size {
		g := &gatherer{
			proc: w.process(fmt.Sprintf("w%d", i), i > 0 && w.rng.IntN(3) < kinds || i == 0 && kinds == 2), w: w,
			waits: map[string]func(Event){},
		}
		w.workers = append(w.workers, g)
	}
	w.workers[1].py = w.workers[1].py && !w.workers[0].py // one Go worker at least
	for _, g := range w.workers {
		g.table = NewGathers()
		if g.py {
			g.table.First(w.names, counted)
		}
		w.after(w.within(2*time.Second), func() { g.next() })
	}
	if deaths {
		for range 1 + w.rng.IntN(2) {
			g := w.workers[w.rng.IntN(size)]
			if at := slices.IndexFunc(w.workers, func(g *gatherer) bool { return g.py }); w.round > 0 && at > 0 && w.rng.IntN(2) > 0 {
				g = w.workers[at] // the one that is asked for the number
			}
			w.after(w.within(4*time.Second), func() { w.kill(g.proc) })
		}
		if at := slices.IndexFunc(w.workers, func(g *gatherer) bool { return g.py }); w.round > 0 && at > 0 && w.rng.IntN(4) == 0 {
			w.workers[at].deafen(w.within(2 * time.Second))
		}
	}
	for range w.rng.IntN(4) {
		a, b := w.names[w.rng.IntN(size)], w.names[w.rng.IntN(size)]
		w.after(w.within(4*time.Second), func() { w.cut(a, b) })
	}
	return w
}

// lost reports whether a worker is dead, or as good as dead, and since when.
func (g *gatherer) lost() (since time.Duration, lost bool) {
	if g.deaf > 0 {
		return g.deaf, true
	}
	return g.died, g.dead
}

// deafen lets a PyTorch worker be as good as dead for those who ask it, at first or a little later.
func (g *gatherer) deafen(after time.Duration) {
	g.w.after(after, func() {
		if !g.dead {
			g.deaf = g.w.now
		}
	})
}

func (g *gatherer) of(name string) *gatherer {
	return g.w.workers[slices.Index(g.w.names, name)]
}

// object is what a worker gives to an all-gather.
func object(name, id string) string { return name + " in " + id }

func (w *gatherSim) self(g *gatherer) Self {
	if w.dynamic {
		return Self{Name: g.name}
	}
	return Self{Name: g.name, Size: len(w.workers)}
}

// next begins the next all-gather.
func (g *gatherer) next() {
	w := g.w
	if g.dead || g.over {
		return
	}
	if g.done == w.gathers {
		g.over = true
		if w.dynamic && w.rng.IntN(2) > 0 { // once its answers have arrived
			w.after(w.latest, func() {
				if !g.dead {
					g.left, g.proc.left = true, w.rng.IntN(2) > 0
					w.kill(g.proc)
				}
			})
		}
		return
	}
	g.tries = append(g.tries, try{entered: w.now})
	if g.py {
		g.torch()
		return
	}
	gather := func() {
		m := NewGather(w.self(g), w.round, w.names, w.together)
		t := &task{p: g.proc, what: "gather", m: m, do: g.do(), deadline: w.now + w.patience()}
		t.then = func() {
			if m.Err() == nil && !g.all {
				w.fault("%s ends its all-gather %d well, without the others", g.name, g.done)
			}
			g.finished(m.Err())
		}
		w.start(t)
	}
	if g.done > 0 || w.round == 0 || !w.together {
		gather()
		return
	}
	c := NewCounting(w.self(g), w.round, w.names, true)
	t := &task{p: g.proc, what: "count", m: c, do: g.do(), deadline: w.now + w.patience()}
	t.then = func() {
		if c.Err() != nil {
			g.finished(c.Err())
			return
		}
		gather()
	}
	w.start(t)
}

// patience is how long a caller waits.
func (w *gatherSim) patience() time.Duration {
	if w.hurried {
		return 1 + w.within(time.Second)
	}
	return timeout
}

// finished takes the end of an all-gather. In a world that starts or ends together a worker that fails leaves.
func (g *gatherer) finished(err error) {
	w := g.w
	if g.dead {
		return
	}
	x := &g.tries[g.done]
	x.ended, x.err = w.now, err
	w.note("%s ends its all-gather %d: %v", g.name, g.done, err)
	g.done++
	if err != nil && w.together {
		g.over, g.left = true, true
		w.kill(g.proc)
		return
	}
	w.after(w.within(300*time.Millisecond), g.next)
}

// told takes a message to the table of a worker and wakes what waits for it.
func (g *gatherer) told(id string, done bool, err error) error {
	if wake := g.waits[id]; done && wake != nil {
		delete(g.waits, id)
		wake(Event{})
	}
	return err
}

// forgetful lets a PyTorch worker begin an all-gather again that is over: it does not see that a message is a copy.
func (g *gatherer) forgetful(id string) {
	if g.py {
		_, _ = g.table.gathering(id)
	}
}

func (g *gatherer) toLeader(from *gatherer, id string) error {
	g.forgetful(id)
	done, err := g.table.ToLeader(id, from.name, object(from.name, id), g.w.names, !from.py)
	if dead := g.table.Lost(id, g.w.names); dead != "" && !from.py {
		g.tellLost(from, id, dead, func(Event) {})
	}
	return g.told(id, done, err)
}

// tellLost tells a follower that an all-gather fails.
func (g *gatherer) tellLost(to *gatherer, id, dead string, answer func(Event)) {
	g.w.call(g.proc, to.proc, true, func() error {
		done, err := to.table.Fail(id, g.w.names, deathOf(dead, 0, "the leader says so", nil))
		return to.told(id, done, err)
	}, answer)
}

func (g *gatherer) toFollower(from *gatherer, id string, items []Item) error {
	g.forgetful(id)
	done, err := g.table.ToFollower(id, items, !from.py)
	return g.told(id, done, err)
}

// do does what the machine of an all-gather asks for.
func (g *gatherer) do() func(op Op, answer func(Event)) {
	w := g.w
	var watching guard
	return func(op Op, answer func(Event)) {
		ev := Event{}
		switch op.Kind {
		case OpGatherCount:
			ev.OK = g.table.Known(op.Names)
		case OpGatherFirst:
			g.table.First(op.Names, op.N)
		case OpGatherEnter:
			ev.Text, _, ev.Err = g.table.Enter(op.Names)
		case OpGatherSeen:
			if s := g.table.Of(op.Text); s != nil && s.Done {
				ev.OK, ev.Err = true, s.Err
			}
		case OpGiveUp:
			g.table.GiveUp(op.Text, op.Names, op.Worker)
		case OpGiveUpNext:
			ev.Reports = g.table.GiveUpNext(op.Names, op.Worker)
		case OpGatherLeave:
			g.all = g.complete(op.Text)
			g.table.Leave(op.Text)
		case OpReport:
			if op.Worker == g.name {
				ev.Err = g.toLeader(g, op.Text)
				break
			}
			to := g.of(op.Worker)
			w.call(g.proc, to.proc, !to.py, func() error { return to.toLeader(g, op.Text) }, answer)
			return
		case OpAwait:
			if s := g.table.Of(op.Text); s == nil || !s.Done {
				g.waits[op.Text] = answer
				return
			}
		case OpShare:
			to, items := g.of(op.Worker), slices.Clone(g.table.Of(op.Text).Items)
			w.call(g.proc, to.proc, !to.py, func() error { return to.toFollower(g, op.Text, items) }, answer)
			return
		case OpNotifyLost:
			g.tellLost(g.of(op.Worker), op.Text, op.Names[0], answer)
			return
		case OpAskCount, OpAskInside:
			g.askTorch(op, answer)
			return
		case OpWatch:
			watching.begin(w.sim, g.proc, w.self(g), w.round, op, answer)
			return
		case OpUnwatch:
			ev = watching.end()
		default:
			panic(op.Kind)
		}
		answer(ev)
	}
}

// askTorch asks a PyTorch worker about its counters.
func (g *gatherer) askTorch(op Op, answer func(Event)) {
	to := g.of(op.Worker)
	var ev Event
	asked := false
	g.w.call(g.proc, to.proc, false, func() error {
		asked = true
		if op.Kind == OpAskCount {
			ev.N = to.table.counts[op.Text]
		} else {
			ev.OK = to.table.Of(op.Text) != nil
		}
		return nil
	}, func(got Event) {
		switch ev.Err, ev.Gone = got.Err, got.Gone; {
		case asked && (got.Gone || to.deaf > 0 || g.w.rng.IntN(16) == 0): // the answer is lost with the connection
			ev = Event{Err: errCutOff}
		case got.Err != nil:
			ev.N, ev.OK = 0, false
		}
		answer(ev)
	})
}

// complete looks at what a Go worker takes out of an all-gather, and reports whether it has ended well.
func (g *gatherer) complete(id string) bool {
	s := g.table.Of(id)
	if s == nil || !s.Done || s.Err != nil {
		return false
	}
	for _, name := range g.w.names {
		if !slices.Contains(s.Items, Item{name, object(name, id)}) {
			g.w.fault("%s gets %v from %s", g.name, s.Items, id)
		}
	}
	return true
}

// torch is an all-gather of a PyTorch worker. It watches no other worker.
func (g *gatherer) torch() {
	w := g.w
	name := gatherName(w.names)
	id := fmt.Sprintf("%s%d", name, g.table.counts[name])
	g.table.counts[name]++ // the moment between counting and entering
	leader := g.of(w.names[0])
	wait := func() {
		s, err := g.table.gathering(id)
		if err != nil {
			g.finished(err)
			return
		}
		finish := func(ev Event) {
			if g.dead {
				return
			}
			if ev.Err != nil {
				g.finished(ev.Err)
				return
			}
			items := g.table.Of(id).Items
			g.table.Leave(id)
			if leader != g {
				g.finished(nil)
				return
			}
			left := len(w.workers) - 1
			for _, to := range w.workers[1:] {
				share := func() {
					w.call(g.proc, to.proc, false, func() error { return to.toFollower(g, id, items) }, func(ev Event) {
						if left--; left == 0 {
							g.finished(ev.Err)
						}
					})
				}
				if w.rng.IntN(4) > 0 {
					share()
				} else { // it is busy
					w.after(w.within(900*time.Millisecond), share)
				}
			}
		}
		if s.Done {
			finish(Event{})
			return
		}
		g.waits[id] = finish
		w.after(timeout, func() {
			if g.waits[id] != nil {
				delete(g.waits, id)
				finish(Event{Err: errDeadline})
			}
		})
	}
	w.after(w.within(20*time.Millisecond), func() {
		if g.dead {
			return
		}
		if leader == g {
			if err := g.toLeader(g, id); err != nil {
				g.finished(err)
				return
			}
			wait()
			return
		}
		w.call(g.proc, leader.proc, false, func() error { return leader.toLeader(g, id) }, func(ev Event) {
			if ev.Err != nil {
				g.finished(ev.Err)
				return
			}
			wait()
		})
	})
}

// simulate runs the world to its end and says what went wrong.
func (w *gatherSim) simulate() error {
	w.run(2 * timeout)
	if w.wrong != nil {
		return w.wrong
	}
	died, first := time.Duration(0), ""
	for _, g := range w.workers {
		if since, lost := g.lost(); lost && (!g.left || g.deaf > 0) && (first == "" || since < died) {
			died, first = since, g.name
		}
	}
	named := map[string]bool{}
	for _, g := range w.workers {
		if g.dead && !g.left || g.py && first != "" {
			continue
		}
		if !g.over {
			return fmt.Errorf("%s waits for ever", g.name)
		}
		for id := range g.table.all {
			if n, err := strconv.Atoi(strings.TrimPrefix(id, gatherName(w.names))); !g.py && err == nil &&
				n < g.table.counts[gatherName(w.names)] {
				return fmt.Errorf("%s has left %s, and keeps it", g.name, id)
			}
		}
		for i, x := range g.tries {
			from := max(x.entered, died) // of the last one that came and lives
			for _, other := range w.workers {
				if !other.dead && len(other.tries) > i {
					from = max(from, other.tries[i].entered)
				}
			}
			switch dead, _ := errors.AsType[*cohort.Error](x.err); {
			case x.err == nil:
			case first == "":
				return fmt.Errorf("no worker has died, and all-gather %d of %s ends with %w", i, g.name, x.err)
			case errors.Is(x.err, errDeadline) || x.ended > from+slack:
				return fmt.Errorf("%s has died at %v, and %s is in all-gather %d from %v to %v", first, died, g.name, i, x.entered, x.ended)
			case dead != nil && dead.Code == cohort.PeerLost && dead.Peer == "":
				return fmt.Errorf("%s does not say who has died: %w", g.name, x.err)
			case dead != nil && dead.Code == cohort.PeerLost:
				other := g.of(dead.Peer)
				if since, lost := other.lost(); !lost || other.left && !other.py && !w.dynamic || since > x.ended {
					return fmt.Errorf("%s takes %s for dead", g.name, dead.Peer)
				}
				named[dead.Peer] = true
			}
		}
	}
	if lost := w.store[at(w.round, KeyLost)]; !w.dynamic && len(named) > 1 || lost != "" && len(named) == 1 && !named[lost] {
		return fmt.Errorf("the workers name %v, the store %q", named, lost)
	}
	return nil
}

func TestGatherSimulation(t *testing.T) {
	t.Parallel()
	ends := map[string]int{}
	for seed := range seeds.Range(200, 273, 476, 1193) {
		for _, deaths := range []bool{false, true} {
			w := holds(t, fmt.Sprintf("seed %d, deaths %v", seed, deaths), func() *gatherSim {
				return newGatherSim(seed, deaths)
			})
			for _, g := range w.workers {
				for _, x := range g.tries {
					switch e, _ := errors.AsType[*cohort.Error](x.err); {
					case x.err == nil && x.ended > 0:
						ends["well"]++
					case e != nil:
						ends[e.Code.String()]++
					case x.err != nil:
						ends["other"]++
					}
				}
			}
		}
	}
	t.Log(ends)
}

// TestGatherDeadlines: when the time of a caller is over, at whatever moment, its all-gather has failed or is complete.
func TestGatherDeadlines(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(200) {
		w := newGatherSim(seed, seed%2 > 0)
		w.hurried = true
		w.run(2 * timeout)
		for _, g := range w.workers {
			if w.wrong == nil && !g.py && !g.dead && !g.over {
				w.fault("%s waits for ever", g.name)
			}
		}
		if w.wrong != nil {
			t.Fatalf("seed %d: %v", seed, w.wrong)
		}
	}
}
