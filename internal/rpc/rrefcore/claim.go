// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

// What a driver needs beside the protocol itself: to claim what a message brought when it knows only the fork, to refuse
// it undecoded, and to look before it acts.

// offerOf finds the own object that a fork was offered for.
func (m *Machine) offerOf(fork ID) *object {
	if id, ok := m.offered[fork]; ok {
		if o := m.objects[id]; o != nil {
			if _, there := o.offers[fork]; there {
				return o
			}
		}
		delete(m.offered, fork)
	}
	return nil
}

// Claim is [Machine.Receive] for a reference that a Cohort peer handed off: the stream has told everything about it, so
// its message need only name the fork. mine says that the message calls this worker the owner.
func (m *Machine) Claim(from Worker, fork ID, mine bool) (w Wire, code Code) {
	if mine {
		o := m.offerOf(fork)
		if o == nil {
			return Wire{}, Gone
		}
		w = Wire{ID: o.id, Fork: fork, Root: o.root, Owner: m.self, OwnerEpoch: m.epoch, Parent: from}
		_, code = m.Receive(from, w)
		return w, code
	}
	h := m.handles[fork]
	if h == nil {
		return Wire{}, Withdrawn
	}
	w = Wire{ID: h.id, Fork: fork, Root: h.root, Owner: h.owner, OwnerEpoch: h.ownerEpoch, Parent: from}
	_, code = m.Receive(from, w)
	return w, code
}

// Discard gives back a reference that was handed off in a message which is not decoded. It does nothing for one that was
// claimed, and for one that another worker has handed off.
func (m *Machine) Discard(from Worker, fork ID) {
	m.dropHandoff(from, fork)
	if o := m.offerOf(fork); o != nil && o.offers[fork].worker == from {
		delete(o.offers, fork)
		delete(m.offered, fork)
		m.freeIfUnused(o)
		return
	}
	if h := m.handles[fork]; h != nil && h.offered && h.parent.worker == from {
		h.offered = false
		m.Drop(fork)
	}
}

// Greet makes the next frame to a Cohort peer go out even if there is nothing to say: after a new connection, so that
// both sides learn where they stand, and to hasten what waits at the peer for a frame.
func (m *Machine) Greet(to Worker) {
	if p := m.peers[to]; p != nil && p.kind == Cohort {
		m.oweAck(p)
	}
}

// Waiting returns how many control messages wait for a peer's acknowledgement.
func (m *Machine) Waiting(to Worker) int {
	if p := m.peers[to]; p != nil {
		return len(p.stream.queue) + len(p.requests)
	}
	return 0
}

// Unsent returns how many control messages to a Cohort peer have not been put in a frame. A frame that is due without any
// is only an acknowledgement, which can wait for company.
func (m *Machine) Unsent(to Worker) int {
	if p := m.peers[to]; p != nil {
		return len(p.stream.queue) - p.stream.sent
	}
	return 0
}

// Tied reports whether references tie this worker to another one: one of the two holds, pins or awaits something of the
// other.
func (m *Machine) Tied(to Worker) bool {
	if m.Waiting(to) > 0 {
		return true
	}
	for _, h := range m.handles {
		if h.owner == to || h.parent.worker == to && h.accepting {
			return true
		}
		for _, child := range h.children {
			if child.worker == to {
				return true
			}
		}
	}
	for _, o := range m.objects {
		for _, holder := range o.forks.all() {
			if holder.worker == to {
				return true
			}
		}
		for _, from := range o.offers {
			if from.worker == to {
				return true
			}
		}
	}
	return false
}

// PeerDead reports whether a worker was given up.
func (m *Machine) PeerDead(id Worker) bool {
	p := m.peers[id]
	return p != nil && p.lease.state == dead
}

// Forge sends a control message that this machine has no reason to send, for tests of what its peers refuse.
func (m *Machine) Forge(to Worker, msg Message) { m.send(to, msg) }
