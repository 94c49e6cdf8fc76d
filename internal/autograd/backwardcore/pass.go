// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"maps"
	"slices"
)

// pass is one worker's part of a pass.
type pass[G any] struct {
	id       PassID
	mode     Mode
	roots    map[Node]G // of the worker that began it
	marked   map[Node]bool
	marks    wave[G]
	grads    wave[G]
	entered  bool // what it has to wait for is computed
	waits    map[Node]int
	sums     map[Node]G
	missing  map[Node]Call // send functions whose gradient has not come
	left     int           // functions that have not run, and holds
	running  map[Node]bool
	owed     map[Node]Call // messages that are answered when the function has run
	over     bool          // this worker has nothing more to do in it
	failed   bool
	cause    Cause
	failSent map[Worker]Time // who has not answered Fail
}

// maxPasses bounds the passes of a context that a worker remembers. The oldest ones that are over go first.
const maxPasses = 1024

// pass returns a pass, made on demand. It is nil when too many are under way.
func (m *Machine[G]) pass(c *context[G], id PassID, mode Mode) *pass[G] {
	p := c.passes[id]
	if p == nil {
		if len(c.passes) >= maxPasses {
			for _, old := range sortedPasses(c.passes) {
				if x := c.passes[old]; x.over && len(x.failSent) == 0 && len(c.passes) > maxPasses/2 {
					delete(c.passes, old)
				}
			}
			if len(c.passes) >= maxPasses {
				return nil
			}
		}
		p = &pass[G]{
			id: id, mode: mode, marked: map[Node]bool{}, marks: newWave[G](Mark), grads: newWave[G](Grad),
			waits: map[Node]int{}, sums: map[Node]G{}, missing: map[Node]Call{}, running: map[Node]bool{}, owed: map[Node]Call{},
			failSent: map[Worker]Time{},
		}
		c.passes[id] = p
	}
	return p
}

// Backward begins a pass from the gradients of some functions of this worker. It reports false when the context is over, or
// more passes are under way in it than a program can mean.
func (m *Machine[G]) Backward(id Context, roots map[Node]G, mode Mode) (PassID, bool) {
	c := m.contexts[id]
	if c == nil {
		return PassID{}, false
	}
	pid := NoID
	if mode != Foreign {
		m.next++
		pid = PassID{m.self, m.next}
	} else if c.passes[NoID] != nil {
		return PassID{}, false
	}
	clear(c.stale)
	p := m.pass(c, pid, mode)
	if p == nil {
		return PassID{}, false
	}
	p.roots = maps.Clone(roots)
	p.marks.root, p.marks.engaged, p.grads.root, p.grads.engaged = true, true, true, true
	if mode == Smart {
		for _, n := range slices.Sorted(maps.Keys(roots)) {
			p.mark(m, c, n)
		}
	}
	p.settle(m, c)
	return p.id, true
}

// Ran reports that a function has run. out has a gradient for each function that it goes on to.
func (m *Machine[G]) Ran(id Context, pid PassID, node Node, out []G) {
	c := m.contexts[id]
	if c == nil || c.passes[pid] == nil || !c.passes[pid].running[node] {
		return
	}
	p := c.passes[pid]
	delete(p.running, node)
	p.left--
	for i, next := range c.nodes[node].next {
		p.flow(m, c, next, out[i])
	}
	if call, owed := p.owed[node]; owed && !p.failed {
		delete(p.owed, node)
		p.reply(m, c, &p.grads, call)
	}
	p.settle(m, c)
}

// Hold keeps a pass from ending at this worker until [Machine.Unhold]: something is left to do that brings no gradients.
// Those that the pass has are sent meanwhile.
func (m *Machine[G]) Hold(id Context, pid PassID) {
	if m.Runs(id, pid) {
		m.contexts[id].passes[pid].left++
	}
}

// Unhold ends one [Machine.Hold].
func (m *Machine[G]) Unhold(id Context, pid PassID) {
	if m.Runs(id, pid) {
		c := m.contexts[id]
		p := c.passes[pid]
		p.left--
		p.settle(m, c)
	}
}

// Failed reports that a function has failed, or the pass for another reason: it ends everywhere.
func (m *Machine[G]) Failed(id Context, pid PassID, cause Cause) {
	if c := m.contexts[id]; c != nil && c.passes[pid] != nil {
		c.passes[pid].fail(m, c, cause)
	}
}

// Over reports whether a pass has ended at this worker.
func (m *Machine[G]) Over(id Context, pid PassID) bool {
	c := m.contexts[id]
	return c == nil || c.passes[pid] != nil && c.passes[pid].over
}

// Runs reports whether a pass is under way at this worker.
func (m *Machine[G]) Runs(id Context, pid PassID) bool {
	c := m.contexts[id]
	return c != nil && c.passes[pid] != nil && !c.passes[pid].over
}

// Missing returns the calls whose gradient this worker waits for in a pass: in a [Fast] one perhaps for ever.
func (m *Machine[G]) Missing(id Context, pid PassID) (calls []Call) {
	if c := m.contexts[id]; c != nil && c.passes[pid] != nil {
		for _, n := range slices.Sorted(maps.Keys(c.passes[pid].missing)) {
			calls = append(calls, c.passes[pid].missing[n])
		}
	}
	return calls
}

// mark follows the functions from one on, and tells the workers behind receive functions.
func (p *pass[G]) mark(m *Machine[G], c *context[G], from Node) {
	for todo := []Node{from}; len(todo) > 0; {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if p.marked[n] {
			continue
		}
		p.marked[n] = true
		todo = append(todo, c.nodes[n].next...)
		if call := c.nodes[n].recv; call != nil {
			var none G
			p.marks.send(m, c, p, *call, c.nodes[n].to, none)
		}
	}
}

// enter computes what every function of this worker has to wait for.
func (p *pass[G]) enter(m *Machine[G], c *context[G]) {
	p.entered = true
	var todo []Node
	seen := map[Node]bool{}
	begin := func(n Node) {
		if !seen[n] {
			seen[n] = true
			todo = append(todo, n)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(p.roots)) {
		begin(n)
	}
	for call, n := range c.sends {
		if p.mode == Smart && p.marked[n] || p.mode != Smart && !c.lost[n] {
			p.missing[n] = call
			p.waits[n]++
			begin(n)
		}
	}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		p.left++
		for _, next := range c.nodes[n].next {
			p.waits[next]++
			begin(next)
		}
	}
	starts := map[Node]bool{}
	for n := range p.missing {
		starts[n] = true
	}
	for n, g := range p.roots {
		p.sums[n] = g
		starts[n] = true
	}
	m.emit(Effect[G]{Kind: Enter, Context: c.id, Pass: p.id, Nodes: slices.Sorted(maps.Keys(starts))})
	for _, n := range slices.Sorted(maps.Keys(p.roots)) {
		p.ready(m, c, n)
	}
}

// flow adds a gradient to a function, which is one less to wait for.
func (p *pass[G]) flow(m *Machine[G], c *context[G], n Node, g G) {
	if sum, ok := p.sums[n]; ok {
		g = m.add(sum, g)
	}
	p.sums[n] = g
	p.waits[n]--
	p.ready(m, c, n)
}

// ready runs a function that waits for nothing, or sends its gradient on.
func (p *pass[G]) ready(m *Machine[G], c *context[G], n Node) {
	if p.waits[n] > 0 || p.running[n] || p.failed {
		return
	}
	g := p.sums[n]
	if call := c.nodes[n].recv; call != nil {
		p.left--
		p.grads.send(m, c, p, *call, c.nodes[n].to, g)
		return
	}
	p.running[n] = true
	m.emit(Effect[G]{Kind: Run, Context: c.id, Pass: p.id, Node: n, Gradient: g})
}

const notSent = "a gradient arrived for a message that it has not sent"

// sendFunction returns the send function of a call, if gradients for it are expected.
func (p *pass[G]) sendFunction(c *context[G], call Call) (Node, bool) {
	node, known := c.sends[call]
	return node, known && (p.mode == Smart || !c.lost[node])
}

// arrived handles a Mark or Grad.
func (p *pass[G]) arrived(m *Machine[G], c *context[G], msg Message[G]) {
	w := &p.marks
	if msg.Kind == Grad {
		w = &p.grads
	}
	if p.failed {
		m.send(Message[G]{Kind: Fail, To: msg.From, Context: c.id, Pass: p.id, Mode: p.mode, Cause: p.cause})
		return
	}
	node, known := p.sendFunction(c, msg.Call)
	if !known {
		p.fail(m, c, Cause{Worker: m.self, Text: notSent})
		return
	}
	if answered, again := w.in[msg.Call]; again {
		if answered {
			p.reply(m, c, w, msg.Call)
		}
		return
	}
	w.in[msg.Call], w.from[msg.Call] = false, msg.From
	if p.over { // there is nothing that it could bring about
		p.reply(m, c, w, msg.Call)
		return
	}
	engages := !w.engaged
	if engages {
		w.engaged, w.parent = true, msg.Call
	}
	p.take(m, c, w, node, msg.Gradient)
	switch {
	case engages || p.failed:
	case p.running[node] && msg.Kind == Grad:
		p.owed[node] = msg.Call // what it sends to that worker goes with the answer
	default:
		p.reply(m, c, w, msg.Call)
	}
	p.settle(m, c)
}

// take handles what a message, or an answer, has brought for a send function.
func (p *pass[G]) take(m *Machine[G], c *context[G], w *wave[G], node Node, g G) {
	if w.kind == Mark {
		p.mark(m, c, node)
		return
	}
	if !p.entered {
		p.enter(m, c)
	}
	if _, waits := p.missing[node]; waits {
		delete(p.missing, node)
		p.flow(m, c, node, g)
	}
}

// done handles the answer to a Mark or Grad, and what it carries.
func (p *pass[G]) done(m *Machine[G], c *context[G], msg Message[G]) {
	w := &p.marks
	if msg.Wave == Grad {
		w = &p.grads
	}
	if w.out[msg.Call] == nil || p.failed {
		return // it came before
	}
	delete(w.out, msg.Call)
	for _, x := range msg.Carried {
		node, known := p.sendFunction(c, x.Call)
		if !known {
			p.fail(m, c, Cause{Worker: m.self, Text: notSent})
			return
		}
		p.take(m, c, w, node, x.Gradient)
	}
	p.settle(m, c)
}

// settle ends what is done: it answers the parent of a wave, and where the pass began it goes on to the next wave. What is left is
// sent.
func (p *pass[G]) settle(m *Machine[G], c *context[G]) {
	if p.failed || p.over && p.grads.root {
		return
	}
	if p.marks.engaged && p.marks.ends(p) {
		switch {
		case !p.marks.root:
			p.marks.engaged = false
			p.reply(m, c, &p.marks, p.marks.parent)
		case !p.entered:
			p.enter(m, c)
		}
	}
	p.marks.release(m, c, p)
	if !p.failed && p.entered && len(p.running) == 0 && p.left == 0 && p.grads.engaged && p.grads.ends(p) {
		p.over = true
		kind := Ended
		if !p.grads.root {
			kind = Left
			p.grads.engaged = false
			p.reply(m, c, &p.grads, p.grads.parent)
		}
		m.emit(Effect[G]{Kind: kind, Context: c.id, Pass: p.id})
		clear(p.sums)
		p.forget(c)
	}
	p.grads.release(m, c, p)
}

// forget drops a pass without an id: the next one will look the same.
func (p *pass[G]) forget(c *context[G]) {
	if p.mode != Foreign {
		return
	}
	delete(c.passes, p.id)
	if p.failed {
		c.expectLate(p.cause, func(call Call) bool {
			_, came := p.grads.in[call]
			return !came
		})
	}
}

// expectLate notes which gradients may still come of a pass without an id that has failed: those that have not. A PyTorch worker does
// not learn of the failure, and goes on.
func (c *context[G]) expectLate(cause Cause, missing func(Call) bool) {
	for call, n := range c.sends {
		if !c.lost[n] && missing(call) {
			c.stale[call] = cause
		}
	}
}

// late refuses a gradient of a pass that has failed: it would begin one that never ends. A gradient which cannot be one, because
// it came before the failure or was refused, begins the next pass.
func (c *context[G]) late(m *Machine[G], msg Message[G]) bool {
	cause, stale := c.stale[msg.Call]
	if !stale {
		clear(c.stale)
		return false
	}
	delete(c.stale, msg.Call)
	m.send(Message[G]{Kind: Fail, To: msg.From, Context: c.id, Pass: msg.Pass, Mode: msg.Mode, Cause: cause})
	return true
}

// fail ends the pass at this worker and notifies everybody who has seen the context.
func (p *pass[G]) fail(m *Machine[G], c *context[G], cause Cause) {
	if p.failed || p.over && p.grads.root {
		return
	}
	p.failed, p.over, p.cause = true, true, cause
	clear(p.running)
	clear(p.sums)
	clear(p.owed)
	p.marks.stop()
	p.grads.stop()
	kind := Left
	if p.grads.root {
		kind = Ended
	}
	m.emit(Effect[G]{Kind: kind, Context: c.id, Pass: p.id, Failed: true, Cause: cause})
	defer p.forget(c)
	if m.contexts[c.id] == nil {
		return // the clean-up notifies them, too
	}
	for _, to := range slices.Sorted(maps.Keys(c.known)) {
		if !m.dead[to] && to != m.self {
			p.failSent[to] = m.now
			m.busy[c.id] = struct{}{}
			m.send(Message[G]{Kind: Fail, To: to, Context: c.id, Pass: p.id, Mode: p.mode, Cause: cause})
		}
	}
}

// lost handles the death of a worker that has seen the context.
func (p *pass[G]) lost(m *Machine[G], c *context[G], w Worker) {
	delete(p.failSent, w)
	if !p.over {
		p.fail(m, c, Cause{Worker: w, Died: true, Text: "the worker died"})
	}
}

// retry repeats what was not answered.
func (p *pass[G]) retry(m *Machine[G], c *context[G]) {
	for _, w := range []*wave[G]{&p.marks, &p.grads} {
		for _, call := range sortedCalls(w.out) {
			u := w.out[call]
			if m.now-u.at >= m.opt.Retry {
				u.at = m.now
				m.send(Message[G]{Kind: w.kind, To: u.to, Context: c.id, Pass: p.id, Mode: p.mode, Call: call, Gradient: u.gradient})
			}
		}
	}
	for _, to := range slices.Sorted(maps.Keys(p.failSent)) {
		if m.now-p.failSent[to] >= m.opt.Retry {
			p.failSent[to] = m.now
			m.send(Message[G]{Kind: Fail, To: to, Context: c.id, Pass: p.id, Mode: p.mode, Cause: p.cause})
		}
	}
}
