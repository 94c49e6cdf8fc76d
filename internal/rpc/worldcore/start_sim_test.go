// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// startSim is some static worlds of the same processes, Go and PyTorch, one after the other on one store. Ranks come late, die
// and are replaced, lose the store, or wait for it. A start that fails is tried again by all ranks. What a rank had asked of a store that
// it loses is done all the same, later, and asked again by its next start; there are no other copies, since clients do not repeat writes.
type startSim struct {
	*sim
	faults  bool
	ranks   []*starter
	mixed   bool // there are PyTorch ranks
	dynamic bool // a dynamic world is in the way
	left    int  // worlds to come
	failed  int  // starts of this world
	signs   bool // PyTorch ranks have left signs of a start that has failed
	spoilt  bool // something has happened that this start cannot survive
	until   time.Duration
	came    time.Duration          // when the last rank has come
	meeting map[int]map[int]func() // who waits in the gloo group of a round
	ends    map[string]int         // how starts have ended
}

// starter is a rank.
type starter struct {
	*proc
	w      *startSim
	rank   int
	count  int // of a PyTorch rank's worlds
	epoch  uint64
	m      *Start
	t      *task
	phase  string // "", "start", "gloo", "names", "well", "failed"
	err    error
	round  int
	knows  []string
	ended  time.Duration
	begun  time.Duration
	listed []Worker
}

// startTime is how long the callers of a start wait.
const startTime = 90 * time.Second

var errLost = errors.New("the connection to the store is lost")

func newStartSim(seed uint64, faults bool) *startSim {
	w := &startSim{sim: newSim(seed), faults: faults, meeting: map[int]map[int]func(){}, ends: map[string]int{}}
	w.latest = []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 4 * time.Second}[w.rng.IntN(3)]
	w.left = 1 + w.rng.IntN(3)
	size, kinds := 2+w.rng.IntN(4), w.rng.IntN(3) // Go only, both, mostly PyTorch
	for r := range size {
		g := &starter{proc: w.process(fmt.Sprintf("w%d", r), r > 0 && w.rng.IntN(3) < kinds), w: w, rank: r}
		w.ranks = append(w.ranks, g)
		w.mixed = w.mixed || g.py
	}
	if w.rng.IntN(2) == 0 { // the last rank need not be the one that looks
		slices.Reverse(w.ranks)
		for r, g := range w.ranks {
			g.rank = r
		}
	}
	w.changes = w.monitorsReplaced
	w.history(size)
	w.attempt()
	return w
}

// slow is a time that depends on how long some hundred answers of the store take.
func (w *startSim) slow(d time.Duration) time.Duration { return d + 100*w.latest }

// history is what earlier worlds have left in the store.
func (w *startSim) history(size int) {
	rounds := w.rng.IntN(3)
	for k := range rounds {
		switch w.rng.IntN(5) {
		case 0: // a dynamic world that everybody has left
			w.store[at(k, KeyStatic)], w.store[at(k, KeyInfos)] = "false", ""
		case 1: // a world of another size
			w.store[at(k, KeyStatic)], w.store[at(k, keySize)] = "true", strconv.Itoa(size+1)
		case 2: // a world of this size
			for r := range size {
				w.store[at(k, KeyNames+strconv.Itoa(r))] = fmt.Sprintf("old%d", r)
			}
			w.store[at(k, KeyStatic)] = "true"
		case 4: // a smaller or larger world of PyTorch ranks; PyTorch itself would not start there
			if w.mixed {
				continue
			}
			for r := range 1 + w.rng.IntN(size+1) {
				w.store[at(k, KeyNames+strconv.Itoa(r))] = fmt.Sprintf("old%d", r)
			}
			w.store[at(k, KeyStatic)] = "true"
		case 3: // a start of PyTorch ranks that has failed
			w.signs = w.mixed
			for _, g := range w.ranks {
				if g.py && w.rng.IntN(3) > 0 {
					w.store[at(k, sign(g.rank, true))] = "the address of a process that has ended"
				}
			}
			if w.mixed && w.rng.IntN(2) == 0 { // and Go ranks were there
				py := slices.IndexFunc(w.ranks, func(g *starter) bool { return g.py })
				w.store[at(k, keyMixed)] = fmt.Sprintf("%d %d", k, py)
			}
		}
	}
	if rounds > 0 && w.rng.IntN(3) > 0 {
		w.store[keyRounds] = strconv.Itoa(w.rng.IntN(rounds))
	}
	if w.dynamic = rounds == 0 && !w.mixed && w.rng.IntN(8) == 0; w.dynamic {
		w.store[at(0, KeyStatic)], w.store[at(0, KeyInfos)] = "false", "other-0,"
	}
	ahead := rounds
	if w.rng.IntN(3) == 0 && !w.signs { // they were in worlds on another store
		ahead += 1 + w.rng.IntN(30)
	}
	for _, g := range w.ranks {
		g.count = ahead
	}
}

// sign is the key of a PyTorch rank's gloo group. Its versions have two forms.
func sign(rank int, old bool) string {
	if old {
		return "0/rank_" + strconv.Itoa(rank)
	}
	return "0/" + strconv.Itoa(rank)
}

// attempt lets all ranks start.
func (w *startSim) attempt() {
	w.spoilt, w.until, w.came = false, w.now+w.slow(startTime), w.now
	clear(w.meeting)
	late := 20 * time.Second
	if w.rng.IntN(2) == 0 {
		late = 500 * time.Millisecond
	}
	for _, g := range w.ranks {
		if g.dead {
			g.replace()
		}
		g.phase, g.listed, g.knows, g.err = "", nil, nil, nil
		d := w.within(late)
		w.came = max(w.came, w.now+d)
		w.after(d, g.start)
	}
	if w.faults && w.failed < 2 {
		for range 1 + w.rng.IntN(2) {
			g := w.ranks[w.rng.IntN(len(w.ranks))]
			w.after(w.within(late+2*time.Second), func() { w.harm(g) })
		}
	}
}

// harm does something to a rank. A Go rank that only waits for others can be replaced, and a start that has lost the store can be
// tried again, without the others noticing; in a world of Go ranks even one that has not announced itself can be replaced.
func (w *startSim) harm(g *starter) {
	waits := g.phase == "start" && !g.py
	if w.ended() || g.dead || g.phase == "" {
		return
	}
	switch w.rng.IntN(3) {
	case 0:
		if g.py { // its successor would be in another round than the others
			return
		}
		unnamed := g.phase == "names" && !w.mixed && g.set != at(g.round, KeyAddrs+g.name)
		w.kill(g.proc)
		if !waits && !unnamed {
			w.spoilt = true
			g.over(errRefused)
			return
		}
		g.phase = "start"
		p := g.proc
		w.after(w.within(5*time.Second), func() {
			if g.proc == p && !w.ended() {
				g.replace()
				g.start()
			}
		})
	case 1:
		if !waits {
			return
		}
		w.note("%s loses the store", g.name)
		for _, id := range slices.Sorted(maps.Keys(g.t.under)) {
			g.t.under[id](Event{Err: errLost})
		}
	case 2:
		w.stalled = w.now + w.within(10*time.Second)
	}
}

// replace is a new process for a rank.
func (g *starter) replace() {
	p := &proc{name: g.name, py: g.py}
	g.proc, g.w.procs[g.name] = p, p
	g.w.note("%s is replaced", g.name)
}

func (g *starter) start() {
	w := g.w
	if g.dead {
		return
	}
	g.phase, g.begun = "start", w.now
	if g.py {
		g.torch()
		return
	}
	g.epoch++
	g.m = NewStart(g.self())
	g.t = &task{p: g.proc, what: "start", m: g.m, do: g.do, deadline: w.until, then: g.started}
	w.start(g.t)
}

// started takes the end of the first part of a start. One that has lost the store is tried again.
func (g *starter) started() {
	w := g.w
	if err := g.m.Err(); err != nil {
		if errors.Is(err, errLost) && w.now < w.until {
			p := g.proc
			w.after(w.within(time.Second), func() {
				if g.proc == p {
					g.start()
				}
			})
			return
		}
		g.over(err)
		return
	}
	g.round = g.m.round
	torch, mixed := g.m.Mixed()
	if mixed != w.mixed {
		w.fault("%s takes the world for one with PyTorch ranks: %v", g.name, mixed)
	}
	if !mixed {
		g.publish()
		return
	}
	w.put(at(g.round, sign(g.rank, true)), "address")
	moved := NewMoved(g.self(), g.round, torch)
	t := &task{p: g.proc, what: "moved", m: moved}
	t.then = func() {
		if errors.Is(moved.Err(), ErrRestart) && g.phase == "gloo" {
			delete(w.meeting[g.round], g.rank)
			g.start()
		}
	}
	g.gloo(func() {
		t.stop()
		g.publish()
	})
	w.start(t)
}

// self is what a Go rank knows about itself.
func (g *starter) self() Self {
	return Self{Name: g.name, Rank: g.rank, Size: len(g.w.ranks), Round: -1, Epoch: g.epoch, Entry: "entry"}
}

// publish is the second part of the start of a Go rank.
func (g *starter) publish() {
	w := g.w
	g.phase = "names"
	if w.faults && w.failed < 2 && w.rng.IntN(10) == 0 {
		w.after(w.within(w.latest), func() { w.harm(g) })
	}
	if w.faults && w.failed < 2 && !w.mixed && w.rng.IntN(20) == 0 {
		w.after(w.within(w.latest), w.killAll)
	}
	n := NewNaming(g.self(), g.round, g.name, w.mixed)
	g.t = &task{p: g.proc, what: "names", m: n, do: g.do, deadline: w.until, then: func() {
		if errors.Is(n.Err(), ErrRestart) {
			g.knows = nil
			g.start()
			return
		}
		g.listed = n.Workers()
		g.over(n.Err())
	}}
	w.start(g.t)
}

// killAll ends all ranks, unless one of them is through.
func (w *startSim) killAll() {
	if slices.ContainsFunc(w.ranks, func(g *starter) bool { return g.phase != "start" && g.phase != "names" }) {
		return
	}
	w.spoilt = true
	for _, g := range w.ranks {
		w.kill(g.proc)
	}
	for _, g := range w.ranks {
		g.over(errRefused)
	}
}

// gloo is the group that all ranks build in their round.
func (g *starter) gloo(then func()) {
	w := g.w
	g.phase = "gloo"
	if w.meeting[g.round] == nil {
		w.meeting[g.round] = map[int]func(){}
	}
	there := w.meeting[g.round]
	p, met := g.proc, false
	there[g.rank] = func() {
		met = true
		w.after(w.while(), func() {
			if !p.dead {
				then()
			}
		})
	}
	if len(there) == len(w.ranks) {
		for _, r := range slices.Sorted(maps.Keys(there)) {
			there[r]()
		}
		return
	}
	w.after(max(w.until-w.now, 0), func() {
		if !met && !p.dead && g.phase == "gloo" {
			g.over(errDeadline)
		}
	})
}

func (g *starter) do(op Op, answer func(Event)) {
	if op.Kind == OpKnow {
		g.knows = append(g.knows, op.Worker)
	}
	answer(Event{})
}

// torch is the start of a PyTorch rank.
func (g *starter) torch() {
	w, until := g.w, g.w.until
	g.round = g.count
	g.count++
	ask := func(op Op, next func(Event)) {
		op.Round = g.round
		answered := false
		w.ask(g.proc, op, func(ev Event) {
			if !answered && !g.dead && w.until == until {
				answered = true
				next(ev)
			}
		})
		w.after(max(until-w.now, 0), func() {
			if !answered && !g.dead {
				answered = true
				g.over(errDeadline)
			}
		})
	}
	all := func(key func(*starter) string, then func()) {
		inOrder(w.ranks, func(x *starter, next func()) {
			ask(Op{Kind: OpGet, Key: key(x)}, func(Event) { next() })
		}, then)
	}
	name := func(x *starter) string { return KeyNames + strconv.Itoa(x.rank) }
	addr := func(x *starter) string { return KeyAddrs + x.name }
	ask(Op{Kind: OpSet, Key: sign(g.rank, w.rng.IntN(2) == 0), Text: "address"}, func(Event) {
		g.gloo(func() {
			g.phase = "names"
			ask(Op{Kind: OpSwap, Key: KeyStatic, Text: "true"}, func(ev Event) {
				if ev.Text != "true" {
					g.over(errors.New("RPC group mixes static and dynamic members"))
					return
				}
				ask(Op{Kind: OpSet, Key: name(g), Text: g.name}, func(Event) {
					all(name, func() {
						ask(Op{Kind: OpSet, Key: addr(g), Text: "address"}, func(Event) {
							all(addr, func() { g.over(nil) })
						})
					})
				})
			})
		})
	})
}

func (w *startSim) simulate() error {
	for w.left > 0 && w.wrong == nil && w.now < 12*w.slow(startTime) {
		w.run(w.now + 500*time.Millisecond)
	}
	if w.wrong == nil && w.left > 0 {
		for _, g := range w.ranks {
			if g.phase != "well" && g.phase != "failed" {
				w.fault("%s waits for ever in %q", g.name, g.phase)
			}
		}
		w.fault("%d worlds have not started", w.left)
	}
	return w.wrong
}

func TestStartSimulation(t *testing.T) {
	t.Parallel()
	ends := map[string]int{}
	for seed := range seeds.Range(200) {
		for _, faults := range []bool{false, true} {
			w := holds(t, fmt.Sprintf("seed %d, faults %v", seed, faults), func() *startSim { return newStartSim(seed, faults) })
			for how, n := range w.ends {
				ends[how] += n
			}
		}
	}
	t.Log(ends)
}
