// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	crand "crypto/rand"
	"crypto/subtle"
	"math/rand/v2"
	"slices"
)

// Among Go workers a request for a fork proves with a key that its sender was given the reference. The creator of an object
// makes a key and tells it to the owner in its announcement and in the creating call; the owner makes one of its own when it
// hands a reference out. The key goes along with every hand-off between Go workers.
//
// PyTorch's wire has no room for a key. A worker that got a reference from a PyTorch worker asks without one. The owner allows that
// if the PyTorch worker, which made the fork, holds a reference itself; and then also to those that the asker passes it on to.
//
// What proves a request may arrive after it. Then the request waits: see earlyMessage.

// Key proves that its holder was given a reference to an object. The zero Key proves nothing.
type Key [16]byte

// opens compares two keys in a time that does not depend on them.
func (k Key) opens(other Key) bool {
	return subtle.ConstantTimeCompare(k[:], other[:]) == 1 && k != (Key{})
}

// randomKeys returns the source of keys that cannot be guessed. One machine uses it, so it need not be safe for concurrent use.
func randomKeys() func(Worker, ID) Key {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails
	source := rand.NewChaCha8(seed)
	return func(Worker, ID) (k Key) {
		_, _ = source.Read(k[:]) // never fails
		return k
	}
}

// ownerKey returns the key that the owner gives away with a reference to an own object.
func (m *Machine) ownerKey(o *object) Key {
	if o.ownKey == (Key{}) {
		o.ownKey = m.newKey(m.self, o.id)
	}
	return o.ownKey
}

// recordCreatorKey notes what the creator of an object says of its key, and looks again at what has waited for it. The first word
// counts.
func (m *Machine) recordCreatorKey(o *object, key Key) {
	if o.creatorKey == (Key{}) {
		o.creatorKey = key
	}
	m.revisit(o.id)
}

// verdict is what an owner makes of a claim to a reference.
type verdict uint8

const (
	unproved verdict = iota
	proved
	notYet // what would prove it may still be on its way
)

// mayFork decides whether a peer was given the fork that it asks for.
func (m *Machine) mayFork(p *peer, msg Message) verdict {
	if p.kind != Cohort {
		return proved
	}
	o := m.objects[msg.ID]
	if msg.Key == (Key{}) {
		return m.mayForkOpenly(p, msg)
	}
	switch {
	case o != nil && (o.creatorKey.opens(msg.Key) || o.ownKey.opens(msg.Key)):
		return proved
	case (o == nil || o.creatorKey == (Key{})) && m.mayAnnounce(msg.ID):
		return notYet
	}
	return unproved
}

// mayForkOpenly is mayFork for a request without a key: the fork was made by a PyTorch worker, or by one that has been
// allowed to ask without a key itself.
func (m *Machine) mayForkOpenly(p *peer, msg Message) verdict {
	minter := m.peers[msg.Fork.On]
	switch {
	// a worker does not hand a reference to itself, and the owner registers what it hands out
	case msg.Fork.On == p.id, msg.Fork.On == m.self:
		return unproved
	case minter != nil && minter.lease.state == dead:
		return unproved
	case minter == nil || !m.MayUse(minter.id, msg.ID):
		return notYet // its own registration may come
	case minter.kind == PyTorch:
		return proved
	}
	if o := m.objects[msg.ID]; o != nil && o.open[minter.id] {
		return proved
	}
	return unproved
}

// mayAnnounce reports whether the creator of an object may still tell its key.
func (m *Machine) mayAnnounce(id ID) bool {
	creator := m.peers[id.On]
	if id.On == m.self || creator == nil {
		return id.On != m.self && id.Epoch != 0
	}
	return creator.kind == Cohort && creator.lease.state != dead
}

// mayReturn decides whether a peer holds the reference to an own object that it hands over.
func (m *Machine) mayReturn(p *peer, id ID) verdict {
	switch {
	case m.MayUse(p.id, id):
		return proved
	case m.asks(p.life(), id):
		return notYet
	}
	return unproved
}

// MayUse reports whether a worker has a reference to an own object, so that it may fetch it and pass it on: it created the
// object, or it holds a fork. An object that is not here may be used by its creator, whose creating call is on its way.
func (m *Machine) MayUse(w Worker, id ID) bool {
	o := m.objects[id]
	if o == nil || id.On == w && !o.former {
		return id.On == w
	}
	for _, holder := range o.forks.all() {
		if holder.worker == w {
			return true
		}
	}
	return false
}

// mayOriginate reports whether a message is its sender's to send. Others are ignored, so that no member of a world can end, confirm
// or use what another one holds. A [ForkRequest] and a [Handoff] are not
// decided here: see rights.go.
func (m *Machine) mayOriginate(w Worker, msg Message) bool {
	switch msg.Kind {
	case Delete, Cancel: // of its own fork; a creation is cancelled by its creator
		if msg.Kind == Cancel && msg.ID.On != w {
			return false
		}
		if o := m.objects[msg.ID]; o != nil {
			if holder, there := o.forks.get(msg.Fork); there {
				return holder.worker == w
			}
		}
	case Announce: // of its own creation
		return msg.ID.On == w && msg.Fork.On == w
	case ForkReply, Created: // by the owner
		h := m.handles[msg.Fork]
		return h != nil && h.owner == w
	case ChildAccept: // by whom the child was given to
		h := m.pins[msg.Fork]
		return h != nil && h.children[msg.Fork].worker == w
	case Withdraw: // by whom it was handed off
		if o := m.objects[msg.ID]; o != nil && msg.Owner == m.self {
			by, offered := o.offers[msg.Fork]
			return !offered || by.worker == w
		}
	default: // ForkRequest, Handoff
	}
	return true
}

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
