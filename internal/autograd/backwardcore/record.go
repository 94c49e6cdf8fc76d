// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import "slices"

// context is what a worker knows of one context.
type context[G any] struct {
	id     Context
	known  map[Worker]bool // who has seen it, as far as this worker knows
	nodes  []function
	sends  map[Call]Node
	lost   map[Node]bool  // send functions whose message failed: it may not have arrived
	stale  map[Call]Cause // gradients that may still come of a pass without an id that has failed
	passes map[PassID]*pass[G]
	asked  Time // when Seen was sent
	tries  int  // how often
	asks   bool // Seen is not answered
}

// function is a recorded function. next are the functions that its gradient goes on to.
type function struct {
	next []Node
	recv *Call // of a receive function: whose send function gets the gradient
	to   Worker
}

// Open opens a context.
func (m *Machine[G]) Open() Context {
	m.next++
	id := Context{m.self, m.next}
	m.context(id)
	return id
}

// context returns a context, made on demand. It is nil for one that was cleaned, or whose origin is dead.
func (m *Machine[G]) context(id Context) *context[G] {
	if c := m.contexts[id]; c != nil {
		return c
	}
	if m.dead[id.Origin] || m.tombs.Has(id) {
		return nil
	}
	c := &context[G]{
		id: id, known: map[Worker]bool{}, nodes: make([]function, 1), sends: map[Call]Node{}, lost: map[Node]bool{},
		stale: map[Call]Cause{}, passes: map[PassID]*pass[G]{},
	}
	if id.Origin != m.self {
		c.known[id.Origin] = true
	}
	m.contexts[id] = c
	return c
}

// Record records a local function whose gradient goes on to next. It reports false when the context is over.
func (m *Machine[G]) Record(id Context, next ...Node) (Node, bool) {
	c := m.context(id)
	if c == nil {
		return 0, false
	}
	c.nodes = append(c.nodes, function{next: slices.Clone(next)})
	return Node(len(c.nodes) - 1), true
}

// RecordSend records that a message carries values to another worker; the gradient comes back to next. The message has to
// carry the context and the call.
func (m *Machine[G]) RecordSend(id Context, to Worker, next ...Node) (Call, bool) {
	node, ok := m.Record(id, next...)
	if !ok {
		return Call{}, false
	}
	call := m.Number()
	c := m.contexts[id]
	c.sends[call] = node
	c.known[to] = true
	return call, true
}

// Number returns a number for a message without values that have gradients.
func (m *Machine[G]) Number() Call {
	m.next++
	return Call{m.self, m.next}
}

// Sent returns the send function of a call.
func (m *Machine[G]) Sent(id Context, call Call) (Node, bool) {
	if c := m.contexts[id]; c != nil {
		n, ok := c.sends[call]
		return n, ok
	}
	return 0, false
}

// Meet notes that a message of a context goes to or came from a worker, without values that have gradients. It reports false
// when the context is over.
func (m *Machine[G]) Meet(id Context, w Worker) bool {
	c := m.context(id)
	if c != nil && w != m.self {
		c.known[w] = true
	}
	return c != nil
}

// Lost reports that the message of a call failed, or that its answer is not waited for any more. A [Fast] pass does not wait for
// its gradient.
func (m *Machine[G]) Lost(id Context, call Call) {
	if c := m.contexts[id]; c != nil {
		if n, ok := c.sends[call]; ok {
			c.lost[n] = true
		}
	}
}

// RecordRecv records that a message brought values of a context. It reports false when the context is over: the message came
// late, and must be refused.
func (m *Machine[G]) RecordRecv(id Context, call Call) (Node, bool) {
	node, ok := m.Record(id)
	if !ok {
		return 0, false
	}
	c := m.contexts[id]
	c.nodes[node].recv, c.nodes[node].to = &call, call.From
	c.known[call.From] = true
	return node, true
}
