// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "slices"

// A request for a fork, or a hand-off to the owner, waits at the owner when what proves it may still be on its way: the word
// of a creator, or the registration of the worker that passed the reference on. Until it is answered, the parent keeps the object.

// maxEarly bounds the messages of one peer that wait.
const maxEarly = 1 << 16

// earlyMessage is a message that waits.
type earlyMessage struct {
	from life
	msg  Message
}

// claimed answers a message that claims a reference to an own object, or keeps it for later.
func (m *Machine) claimed(p *peer, msg Message) {
	if m.decide(p, msg, false) {
		return
	}
	if p.early >= maxEarly || msg.Kind == Handoff && m.Unsettled(msg.Fork) { // or it hands one fork over twice
		m.refuse(p, msg)
		return
	}
	p.early++
	m.early[msg.ID] = append(m.early[msg.ID], earlyMessage{p.life(), msg})
	if msg.Kind == Handoff {
		m.unsettled[msg.Fork] = msg.ID
	}
}

// decide answers a message, unless it has to wait. waited says that it has.
func (m *Machine) decide(p *peer, msg Message, waited bool) bool {
	if msg.Kind == Handoff {
		return m.returned(p, msg)
	}
	code, early := m.addFork(p, msg)
	if early {
		return false
	}
	if waited && code == Gone && m.objects[msg.ID] == nil {
		code = CreatorLost // it was never announced
	}
	m.send(p.id, Message{Kind: ForkReply, ID: msg.ID, Fork: msg.Fork, Code: code})
	return true
}

// refuse answers a message that is not kept.
func (m *Machine) refuse(p *peer, msg Message) {
	if msg.Kind == Handoff {
		m.send(p.id, Message{Kind: ChildAccept, Fork: msg.Fork})
		return
	}
	m.send(p.id, Message{Kind: ForkReply, ID: msg.ID, Fork: msg.Fork, Code: Gone})
}

// asks reports whether a request of a worker for a fork of an object waits.
func (m *Machine) asks(who life, id ID) bool {
	return slices.ContainsFunc(m.early[id], func(e earlyMessage) bool { return e.from == who && e.msg.Kind == ForkRequest })
}

// Unsettled reports whether it is not decided yet if a fork that was handed to this worker, the owner, can be claimed. An
// effect Settled follows.
func (m *Machine) Unsettled(fork ID) bool {
	_, waits := m.unsettled[fork]
	return waits
}

// dropHandoff drops a hand-off of a peer that waits: its message will not come, or was not decoded.
func (m *Machine) dropHandoff(from Worker, fork ID) {
	id, waits := m.unsettled[fork]
	if !waits {
		return
	}
	m.dropEarly(id, func(e earlyMessage) bool {
		given := e.msg.Kind == Handoff && e.msg.Fork == fork && e.from.worker == from
		if given {
			m.send(from, Message{Kind: ChildAccept, Fork: fork})
		}
		return given
	})
}

// revisit looks again at what waits for news of an object.
func (m *Machine) revisit(id ID) {
	for before := 0; len(m.early[id]) != before; { // what is decided may decide others
		before = len(m.early[id])
		m.dropEarly(id, func(e earlyMessage) bool {
			p := m.peers[e.from.worker]
			return p == nil || p.life() != e.from || m.decide(p, e.msg, true)
		})
	}
}

// revisitOf looks again at what waits for something that a worker would have to say: it has ended, or has begun anew.
func (m *Machine) revisitOf(w Worker) {
	for _, id := range sortedKeys(m.early) {
		if id.On == w || slices.ContainsFunc(m.early[id], func(e earlyMessage) bool { return e.msg.Fork.On == w }) {
			m.revisit(id)
		}
	}
}

// forgetEarly drops what a worker that has ended was waiting for.
func (m *Machine) forgetEarly(gone life) {
	for _, id := range sortedKeys(m.early) {
		m.dropEarly(id, func(e earlyMessage) bool { return e.from == gone })
		m.revisit(id) // what it passed on
	}
}

// dropEarly drops messages about an object that wait.
func (m *Machine) dropEarly(id ID, drop func(earlyMessage) bool) {
	waiting := m.early[id]
	if waiting == nil {
		return
	}
	var rest []earlyMessage
	for _, e := range waiting {
		if !drop(e) {
			rest = append(rest, e)
			continue
		}
		if e.msg.Kind == Handoff {
			delete(m.unsettled, e.msg.Fork)
			m.emit(Effect{Kind: Settled, Fork: e.msg.Fork})
		}
		if p := m.peers[e.from.worker]; p != nil && p.life() == e.from {
			p.early--
		}
	}
	if m.early[id] = rest; len(rest) == 0 {
		delete(m.early, id)
	}
}
