// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/util/tombstone"
)

// Options are the durations and the limits of a Machine.
type Options struct {
	Retry   time.Duration // after which an unanswered message is sent again (default 200 ms)
	Tombs   int           // how many cleaned contexts are remembered, or half of them (default 65536)
	Tries   int           // how often a clean-up is sent to a worker that does not answer (default 50)
	First   uint64        // what the numbers of contexts, messages and passes begin after, so that a former worker of this id had others
	Cleaned int           // the code of the cause when a context is cleaned up under a pass
}

// Time is what the driver's monotonic clock says. Only differences matter.
type Time = time.Duration

// Machine is one worker's part. It is not safe for concurrent use; one driver owns it.
type Machine[G any] struct {
	self     Worker
	opt      Options
	add      func(a, b G) G
	now      Time
	next     uint64
	contexts map[Context]*context[G]
	tombs    tombstone.Set[Context] // contexts that were cleaned
	dead     map[Worker]bool
	cleaning map[cleaning]*repeated // Cleanup messages that are not answered
	busy     map[Context]struct{}   // contexts in which something may have to be sent again
	effects  []Effect[G]
	taken    []Effect[G] // what Take has returned last; its memory is used again
}

// repeated is when a message was sent, and how often.
type repeated struct {
	at    Time
	tries int
}

type cleaning struct {
	context Context
	to      Worker
}

// New returns the machine of one worker. add adds two gradients.
func New[G any](self Worker, add func(a, b G) G, opt Options) *Machine[G] {
	if opt.Retry == 0 {
		opt.Retry = 200 * time.Millisecond
	}
	if opt.Tombs == 0 {
		opt.Tombs = 1 << 16
	}
	if opt.Tries == 0 {
		opt.Tries = 50
	}
	return &Machine[G]{
		self: self, opt: opt, add: add, next: opt.First, contexts: map[Context]*context[G]{}, dead: map[Worker]bool{},
		cleaning: map[cleaning]*repeated{}, busy: map[Context]struct{}{},
	}
}

// Take returns the effects since the last call, in order. They are there until the next call.
func (m *Machine[G]) Take() []Effect[G] {
	clear(m.taken)
	m.effects, m.taken = m.taken[:0], m.effects
	return m.taken
}

func (m *Machine[G]) emit(e Effect[G]) { m.effects = append(m.effects, e) }

func (m *Machine[G]) send(msg Message[G]) {
	msg.From = m.self
	if !m.dead[msg.To] {
		m.emit(Effect[G]{Kind: Send, Msg: msg})
	}
}

// Release ends a context everywhere.
func (m *Machine[G]) Release(id Context) { m.clean(id, m.self) }

// clean forgets a context and passes that on, except to whom it is known from, and to who opened it: that worker has
// ended it itself, or is declared dead. A PyTorch worker that only leaves is still within it, and would fail without
// it.
func (m *Machine[G]) clean(id Context, from Worker) {
	m.tombs.Add(id, m.opt.Tombs)
	c := m.contexts[id]
	if c == nil {
		return
	}
	delete(m.contexts, id)
	delete(m.busy, id)
	for _, pid := range sortedPasses(c.passes) {
		p := c.passes[pid]
		p.fail(m, c, Cause{Worker: from, Code: m.opt.Cleaned, Text: "the context was cleaned up"})
	}
	m.emit(Effect[G]{Kind: Freed, Context: id})
	for _, to := range slices.Sorted(maps.Keys(c.known)) {
		if to != from && to != m.self && to != id.Origin && !m.dead[to] {
			m.cleaning[cleaning{id, to}] = &repeated{at: m.now}
			m.send(Message[G]{Kind: Cleanup, To: to, Context: id})
		}
	}
}

// Known returns the workers that have seen a context, as far as this one knows.
func (m *Machine[G]) Known(id Context) []Worker {
	if c := m.contexts[id]; c != nil {
		return slices.Sorted(maps.Keys(c.known))
	}
	return nil
}

// Contexts returns how many contexts and unanswered clean-ups there are.
func (m *Machine[G]) Contexts() (contexts, unanswered int) { return len(m.contexts), len(m.cleaning) }

// Busy reports whether something may have to be sent again: whether Tick matters.
func (m *Machine[G]) Busy() bool { return len(m.cleaning) > 0 || len(m.busy) > 0 }

// PeerBack reports that a worker with the id of one that died has come. The contexts of every PyTorch process have the same numbers, so
// those of the dead one must not be remembered as over.
func (m *Machine[G]) PeerBack(w Worker) {
	if m.dead[w] {
		delete(m.dead, w)
		m.tombs.Forget(func(id Context) bool { return id.Origin == w })
	}
}

// Ask asks the worker that opened a context whether it is still there, until it answers. It is for contexts that have been there for
// long.
func (m *Machine[G]) Ask(id Context) {
	if c := m.contexts[id]; c != nil && id.Origin != m.self {
		c.asks = true
		m.ask(c)
	}
}

// PeerDied reports a worker that is certainly dead. Passes of contexts that it has seen fail, and its contexts are over.
func (m *Machine[G]) PeerDied(w Worker) {
	m.dead[w] = true
	maps.DeleteFunc(m.cleaning, func(k cleaning, _ *repeated) bool { return k.to == w })
	for _, id := range sortedContexts(m.contexts) {
		c := m.contexts[id]
		if c == nil || !c.known[w] {
			continue
		}
		for _, pid := range sortedPasses(c.passes) {
			c.passes[pid].lost(m, c, w)
		}
		delete(c.known, w)
		switch id.Origin {
		case w:
			m.clean(id, w)
		case m.self:
		default: // the clean-up may have been on its way through that worker
			c.asks = true
			m.ask(c)
		}
	}
}

func sortedContexts[V any](all map[Context]V) []Context {
	return slices.SortedFunc(maps.Keys(all), func(a, b Context) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.N, b.N))
	})
}

// busy reports whether something of the context is not answered.
func (c *context[G]) busy() bool {
	if c.asks {
		return true
	}
	for _, p := range c.passes {
		if len(p.marks.out) > 0 || len(p.grads.out) > 0 || len(p.failSent) > 0 {
			return true
		}
	}
	return false
}

func sortedPasses[G any](all map[PassID]*pass[G]) []PassID {
	return slices.SortedFunc(maps.Keys(all), func(a, b PassID) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.N, b.N))
	})
}

// silence is how many times longer than a clean-up is repeated, who opened a context is asked whether it is still there.
const silence = 6

// Tick gives the time: what was not answered is sent again.
func (m *Machine[G]) Tick(now Time) {
	m.now = now
	for _, k := range slices.SortedFunc(maps.Keys(m.cleaning), func(a, b cleaning) int {
		return cmp.Or(cmp.Compare(a.context.Origin, b.context.Origin), cmp.Compare(a.context.N, b.context.N), cmp.Compare(a.to, b.to))
	}) {
		if again := m.cleaning[k]; now-again.at >= m.opt.Retry {
			again.at = now
			if again.tries++; again.tries >= m.opt.Tries {
				delete(m.cleaning, k) // it will ask, once it can
				continue
			}
			m.send(Message[G]{Kind: Cleanup, To: k.to, Context: k.context})
		}
	}
	for _, id := range sortedContexts(m.busy) {
		c := m.contexts[id]
		if !c.busy() {
			delete(m.busy, id)
			continue
		}
		if c.asks && now-c.asked >= m.opt.Retry {
			if c.tries++; c.tries > silence*m.opt.Tries {
				m.clean(id, id.Origin) // as good as dead
				continue
			}
			m.ask(c)
		}
		for _, pid := range sortedPasses(c.passes) {
			c.passes[pid].retry(m, c)
		}
	}
}

// ask tells who opened a context that this worker has seen it.
func (m *Machine[G]) ask(c *context[G]) {
	if c.asks {
		c.asked = m.now
		m.busy[c.id] = struct{}{}
		m.send(Message[G]{Kind: Seen, To: c.id.Origin, Context: c.id})
	}
}

// Receive handles a message.
func (m *Machine[G]) Receive(msg Message[G]) {
	if m.dead[msg.From] {
		return // a late message of a worker that was given up
	}
	c := m.contexts[msg.Context]
	switch msg.Kind {
	case Cleanup:
		m.clean(msg.Context, msg.From)
		m.send(Message[G]{Kind: Cleaned, To: msg.From, Context: msg.Context})
	case Cleaned:
		delete(m.cleaning, cleaning{msg.Context, msg.From})
	case Seen:
		if c == nil { // it is over, and that worker, which asks until it knows, was not told
			m.send(Message[G]{Kind: Cleanup, To: msg.From, Context: msg.Context})
			return
		}
		c.known[msg.From] = true
		m.send(Message[G]{Kind: Noted, To: msg.From, Context: msg.Context})
	case Noted:
		if c != nil {
			c.asks, c.tries = false, 0
		}
	case Mark, Grad:
		if c == nil { // it is over, or never was
			m.send(Message[G]{
				Kind: Fail, To: msg.From, Context: msg.Context, Pass: msg.Pass, Mode: msg.Mode,
				Cause: Cause{Worker: m.self, Text: "it does not know the context, or not any more"},
			})
			return
		}
		if msg.Mode == Foreign && c.passes[msg.Pass] == nil && c.late(m, msg) {
			return
		}
		p := m.pass(c, msg.Pass, msg.Mode)
		if p == nil {
			m.send(Message[G]{
				Kind: Fail, To: msg.From, Context: msg.Context, Pass: msg.Pass, Mode: msg.Mode,
				Cause: Cause{Worker: m.self, Text: "too many passes are under way in the context"},
			})
			return
		}
		p.arrived(m, c, msg)
	case Done:
		if c != nil && c.passes[msg.Pass] != nil {
			c.passes[msg.Pass].done(m, c, msg)
		}
	case Fail:
		m.send(Message[G]{Kind: FailReceived, To: msg.From, Context: msg.Context, Pass: msg.Pass})
		if c == nil {
			return
		}
		if msg.Mode == Foreign && c.passes[msg.Pass] == nil { // without an id it cannot be remembered as failed
			c.expectLate(msg.Cause, func(Call) bool { return true })
			return
		}
		if p := m.pass(c, msg.Pass, msg.Mode); p != nil {
			p.fail(m, c, msg.Cause)
		}
	case FailReceived:
		if c != nil && c.passes[msg.Pass] != nil {
			delete(c.passes[msg.Pass].failSent, msg.From)
		}
	}
}
