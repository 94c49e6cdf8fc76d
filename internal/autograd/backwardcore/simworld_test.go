// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

const prime = 1_000_003 // gradients are numbers modulo this one: sums in any order are equal

func sum(a, b int64) int64 { return (a + b) % prime }

// world is what a simulation is about.
type world struct {
	rng     *rand.Rand
	log     func(format string, args ...any)
	opt     Options
	mode    Mode
	now     Time
	seq     int
	flying  []flight
	workers []*worker
	lossy   bool
	crashes bool
	breaks  bool // a function fails
	holds   bool // passes are held
	origin  *worker
	ctx     Context
	ended   []Effect[int64]
	early   []Worker // those that held a pass which has ended
	died    map[Worker]bool
	failing map[at]bool
	strays  []stray
	sent    map[Kind]int
	slowest Time    // that a message takes
	noticed [2]Time // after which a death is, at least and at most
	trouble Time    // when a function failed or a worker of the context died
}

type at struct {
	w Worker
	n Node
}

type stray struct {
	call Call
	to   Worker
}

type flight struct {
	at  Time
	seq int
	do  func()
}

type worker struct {
	id      Worker
	m       *Machine[int64]
	weights map[Node][]int64
	leaves  map[Node]int64
	values  []Node // what can be used or sent
	freed   bool
	held    map[PassID]int // by something that is left to do
}

func newWorld(seed uint64, opt Options, mode Mode, log func(string, ...any)) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 77)), log: log, opt: opt, mode: mode, died: map[Worker]bool{}, failing: map[at]bool{},
		sent:    map[Kind]int{},
		slowest: 300 * time.Millisecond, noticed: [2]Time{100 * time.Millisecond, 900 * time.Millisecond},
	}
	for id := range 2 + w.rng.IntN(4) {
		w.workers = append(w.workers, &worker{
			id: Worker(id), m: New(Worker(id), sum, opt), weights: map[Node][]int64{},
			leaves: map[Node]int64{}, held: map[PassID]int{},
		})
	}
	w.origin = w.workers[0]
	w.lossy, w.crashes, w.breaks = w.rng.IntN(3) > 0, w.rng.IntN(4) == 0, w.rng.IntN(8) == 0
	return w
}

func (w *world) record(k *worker, next ...Node) Node {
	n, ok := k.m.Record(w.ctx, next...)
	if !ok {
		panic("a live context is over")
	}
	for range next {
		k.weights[n] = append(k.weights[n], 1+w.rng.Int64N(100))
	}
	k.values = append(k.values, n)
	return n
}

// transfer sends a value to another worker.
func (w *world) transfer(from, to *worker, value Node) {
	call, ok := from.m.RecordSend(w.ctx, to.id, value)
	if !ok {
		panic("a live context is over")
	}
	from.weights[from.m.contexts[w.ctx].sends[call]] = []int64{1}
	n, ok := to.m.RecordRecv(w.ctx, call)
	if !ok {
		panic("a live context is over")
	}
	to.values = append(to.values, n)
}

func pick[T any](rng *rand.Rand, all []T) T { return all[rng.IntN(len(all))] }

// forward builds the graph, and returns the roots of the pass.
func (w *world) forward() map[Node]int64 {
	w.ctx = w.origin.m.Open()
	w.record(w.origin)
	for range 5 + w.rng.IntN(60) {
		k := pick(w.rng, w.workers)
		switch {
		case len(k.values) == 0: // it sees the context when a message comes
		case w.rng.IntN(6) == 0:
			w.record(k)
		case w.rng.IntN(2) == 0:
			if to := pick(w.rng, w.workers); to != k {
				w.transfer(k, to, pick(w.rng, k.values))
			}
		default:
			var next []Node
			for range 1 + w.rng.IntN(3) {
				next = append(next, pick(w.rng, k.values))
			}
			w.record(k, next...)
		}
	}
	if w.mode == Fast { // every value that was sent has to enter the loss
		for _, k := range w.workers[1:] {
			if len(k.values) > 0 {
				w.transfer(k, w.origin, w.record(k, k.values...))
			}
		}
		return map[Node]int64{w.record(w.origin, w.origin.values...): 1}
	}
	if w.rng.IntN(3) == 0 { // a message that comes when all is over
		for _, to := range w.workers[1:] {
			if call, ok := w.origin.m.RecordSend(w.ctx, to.id); ok {
				w.strays = append(w.strays, stray{call, to.id})
			}
		}
	}
	roots := map[Node]int64{}
	for range 1 + w.rng.IntN(3) {
		roots[pick(w.rng, w.origin.values)] = 1 + w.rng.Int64N(100)
	}
	return roots
}

// oracle is the gradient of every leaf on one worker.
func (w *world) oracle(roots map[Node]int64) map[at]int64 {
	type edge struct {
		to     at
		weight int64
	}
	edges := func(x at) (out []edge) {
		k := w.workers[x.w]
		f := k.m.contexts[w.ctx].nodes[x.n]
		if f.recv != nil {
			return []edge{{at{f.to, w.workers[f.to].m.contexts[w.ctx].sends[*f.recv]}, 1}}
		}
		for i, n := range f.next {
			out = append(out, edge{at{x.w, n}, k.weights[x.n][i]})
		}
		return out
	}
	var order []at // every function behind those that it goes on to
	seen := map[at]bool{}
	var visit func(x at)
	visit = func(x at) {
		if seen[x] {
			return
		}
		seen[x] = true
		for _, e := range edges(x) {
			visit(e.to)
		}
		order = append(order, x)
	}
	grads := map[at]int64{}
	for n, g := range roots {
		visit(at{w.origin.id, n})
		grads[at{w.origin.id, n}] = g
	}
	leaves := map[at]int64{}
	for _, x := range slices.Backward(order) {
		out := edges(x)
		if len(out) == 0 {
			leaves[x] = grads[x]
		}
		for _, e := range out {
			grads[e.to] = (grads[e.to] + grads[x]*e.weight) % prime
		}
	}
	return leaves
}

func (w *world) later(d Time, do func()) {
	w.seq++
	w.flying = append(w.flying, flight{w.now + d, w.seq, do})
}

// settle performs the effects of a worker.
func (w *world) settle(k *worker) {
	for _, e := range k.m.Take() {
		switch e.Kind {
		case Send:
			w.sent[e.Msg.Kind]++
			copies := 1
			if w.lossy {
				copies = []int{0, 1, 1, 1, 1, 2}[w.rng.IntN(6)]
			}
			for range copies {
				w.later(time.Duration(1+w.rng.Int64N(w.slowest.Milliseconds()))*time.Millisecond, func() {
					if to := w.workers[e.Msg.To]; !w.died[to.id] {
						w.log("%v: %d to %d: kind %d %v", w.now, e.Msg.From, e.Msg.To, e.Msg.Kind, e.Msg.Call)
						to.m.Receive(e.Msg)
						w.settle(to)
					}
				})
			}
		case Run:
			w.later(time.Duration(w.rng.Int64N(100))*time.Millisecond, func() { w.run(k, e) })
		case Ended:
			w.log("%v: the pass has ended: %+v", w.now, e)
			for _, o := range w.workers {
				if o.held[e.Pass] > 0 && !e.Failed {
					w.early = append(w.early, o.id)
				}
			}
			w.ended = append(w.ended, e)
		case Freed:
			k.freed = true
		}
	}
}

func (w *world) run(k *worker, e Effect[int64]) {
	if w.died[k.id] || k.freed {
		return
	}
	if w.failing[at{k.id, e.Node}] {
		w.troubled()
		k.m.Failed(e.Context, e.Pass, Cause{Worker: k.id, Node: e.Node, Text: "it fails"})
		w.settle(k)
		return
	}
	var out []int64
	for _, weight := range k.weights[e.Node] {
		out = append(out, e.Gradient*weight%prime)
	}
	if len(out) == 0 {
		k.leaves[e.Node] = sum(k.leaves[e.Node], e.Gradient)
	}
	held := w.holds && w.rng.IntN(4) == 0
	if held {
		k.m.Hold(e.Context, e.Pass)
		k.held[e.Pass]++
	}
	k.m.Ran(e.Context, e.Pass, e.Node, out)
	w.settle(k)
	if held {
		w.later(time.Duration(w.rng.Int64N(500))*time.Millisecond, func() {
			if !w.died[k.id] {
				k.held[e.Pass]--
				k.m.Unhold(e.Context, e.Pass)
				w.settle(k)
			}
		})
	}
}

// until lets time pass until something holds, for at most limit. It reports whether it holds.
func (w *world) until(limit Time, holds func() bool) bool {
	for end := w.now + limit; w.now < end; {
		if holds() {
			return true
		}
		w.now += 10 * time.Millisecond
		slices.SortFunc(w.flying, func(a, b flight) int {
			if a.at != b.at {
				return int(a.at - b.at)
			}
			return a.seq - b.seq
		})
		for len(w.flying) > 0 && w.flying[0].at <= w.now {
			f := w.flying[0]
			w.flying = w.flying[1:]
			f.do()
		}
		for _, k := range w.workers {
			if !w.died[k.id] {
				k.m.Tick(w.now)
				w.settle(k)
			}
		}
	}
	return holds()
}

// troubled notes when the first failure happened.
func (w *world) troubled() {
	if w.trouble == 0 {
		w.trouble = w.now
	}
}

func (w *world) crash(k *worker) {
	w.log("%v: %d dies", w.now, k.id)
	w.died[k.id] = true
	if k.m.contexts[w.ctx] != nil {
		w.troubled()
	}
	for _, o := range w.workers {
		if o != k && !w.died[o.id] {
			w.later(w.noticed[0]+time.Duration(w.rng.Int64N((w.noticed[1]-w.noticed[0]).Milliseconds()))*time.Millisecond, func() {
				o.m.PeerDied(k.id)
				w.settle(o)
			})
		}
	}
}

// simulate runs one seed and returns what is wrong.
func simulate(seed uint64, opt Options, mode Mode, log func(string, ...any)) error {
	w := newWorld(seed, opt, mode, log)
	w.holds = true
	roots := w.forward()
	want := w.oracle(roots)
	live := slices.SortedFunc(maps.Keys(want), func(a, b at) int { return int(a.w)*10_000 + int(a.n) - int(b.w)*10_000 - int(b.n) })
	if w.breaks {
		w.failing[pick(w.rng, live)] = true
	}
	passes := 1 + w.rng.IntN(2)
	for range passes {
		if _, ok := w.origin.m.Backward(w.ctx, roots, mode); !ok {
			return errors.New("the pass does not begin")
		}
	}
	w.settle(w.origin)
	if w.crashes {
		w.later(time.Duration(w.rng.Int64N(2000))*time.Millisecond, func() { w.crash(pick(w.rng, w.workers)) })
	}
	if !w.until(2*time.Minute, func() bool { return len(w.ended) == passes || w.died[0] }) {
		return fmt.Errorf("%d of %d passes have ended", len(w.ended), passes)
	}
	if err := w.check(want, passes); err != nil {
		return err
	}
	return w.cleanUp()
}

// check compares what came out with the gradient on one worker.
func (w *world) check(want map[at]int64, passes int) error {
	failed := 0
	if len(w.early) > 0 && len(w.died) == 0 {
		return fmt.Errorf("a pass has ended that workers %v held", w.early)
	}
	for _, e := range w.ended {
		if !e.Failed {
			continue
		}
		failed++
		if !w.died[e.Cause.Worker] && !w.failing[at{e.Cause.Worker, e.Cause.Node}] {
			return fmt.Errorf("a pass failed without a reason: %+v", e.Cause)
		}
	}
	if failed > 0 && !w.crashes && !w.breaks {
		return fmt.Errorf("%d passes failed", failed)
	}
	if failed > 0 { // it has to end everywhere
		if !w.until(5*time.Second, func() bool { return !w.running() }) {
			return errors.New("a failed pass goes on somewhere")
		}
	}
	if failed > 0 || w.died[0] || len(w.died) > 0 {
		return nil
	}
	for x, g := range want {
		if got := w.workers[x.w].leaves[x.n]; got != g*int64(passes)%prime {
			return fmt.Errorf("leaf %d of worker %d has the gradient %d, want %d", x.n, x.w, got, g*int64(passes)%prime)
		}
	}
	return nil
}

// running reports whether a live worker is in a pass.
func (w *world) running() bool {
	for _, k := range w.workers {
		if c := k.m.contexts[w.ctx]; c != nil && !w.died[k.id] {
			for _, p := range c.passes {
				if p.entered && !p.over {
					return true
				}
			}
		}
	}
	return false
}

// cleanUp releases the context: nothing may be left of it, and nothing may bring it back.
func (w *world) cleanUp() error {
	if !w.died[0] {
		w.origin.m.Release(w.ctx)
		w.settle(w.origin)
	}
	if !w.until(time.Minute, func() bool {
		for _, k := range w.workers {
			if contexts, unanswered := k.m.Contexts(); !w.died[k.id] && contexts+unanswered > 0 {
				return false
			}
		}
		return true
	}) {
		return errors.New("a context is left")
	}
	if w.died[0] { // perhaps only now, before all had the clean-up
		w.until(2*time.Second, func() bool { return false }) // everybody has learned of it
	}
	for _, s := range w.strays {
		k := w.workers[s.to]
		if w.died[k.id] {
			continue
		}
		if _, ok := k.m.RecordRecv(w.ctx, s.call); ok {
			return fmt.Errorf("a late message has brought the context back at worker %d", k.id)
		}
	}
	w.until(2*time.Second, func() bool { return false }) // what is still on its way
	for _, k := range w.workers {
		if contexts, _ := k.m.Contexts(); contexts > 0 && !w.died[k.id] {
			return fmt.Errorf("a late message has brought a context back at worker %d", k.id)
		}
	}
	return nil
}
