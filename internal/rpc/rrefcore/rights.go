// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	crand "crypto/rand"
	"crypto/subtle"
	"math/rand/v2"
)

// Among Go workers a request for a fork proves with a key that its sender was given the reference. The creator of an object
// makes a key and tells it to the owner in its announcement and in the creating call; the owner makes one of its own when it
// hands a reference out. The key goes along with every hand-off between Go workers.
//
// PyTorch's wire has no room for a key. A worker that got a reference from a PyTorch worker asks without one. The owner allows that
// if the PyTorch worker, which made the fork, holds a reference itself; and then also to those that the asker passes it on to.
//
// What proves a request may arrive after it. Then the request waits: see early.go.

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
