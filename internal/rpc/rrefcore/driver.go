// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"slices"
	"time"
)

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

// Counts are the sizes of the tables. The first four are PyTorch's debug keys; the others it lacks.
type Counts struct {
	OwnerRRefs      int // objects that are kept for others: num_owner_rrefs
	PendingFutures  int // control messages under way: num_pending_futures
	PendingUsers    int // references that are not confirmed: num_pending_users
	Forks           int // all forks of own objects: num_forks
	ConfirmedUsers  int
	FailedUsers     int
	PendingChildren int // children that have not accepted: what pins a parent
	PendingOwners   int // placeholders whose creating call has not arrived
	LocalUses       int
	Offers          int // handed off to this worker, not claimed yet
	Unsettled       int // handed off to this worker, before what proves it
}

// Counts returns the sizes of the tables.
func (m *Machine) Counts() Counts {
	c := Counts{Unsettled: len(m.unsettled)}
	for _, o := range m.objects {
		if o.forks.len() > 0 || len(o.offers) > 0 || !o.called {
			c.OwnerRRefs++
		}
		if !o.called {
			c.PendingOwners++
		}
		c.Forks += o.forks.len()
		c.LocalUses += o.local
		c.Offers += len(o.offers)
	}
	for _, h := range m.handles {
		switch h.state {
		case pending:
			c.PendingUsers++
		case confirmed:
			c.ConfirmedUsers++
		case failed:
			c.FailedUsers++
		}
		c.PendingChildren += len(h.children)
	}
	for _, p := range m.peers {
		if !p.lease.certain { // nothing is under way to a process that has ended
			c.PendingFutures += len(p.requests) + len(p.stream.queue)
		}
	}
	return c
}

// ObjectInfo describes an own object: for the leak report and for `cohort rpc refs`.
type ObjectInfo struct {
	ID     ID
	Age    time.Duration
	Valued bool
	Called bool
	Local  int
	Forks  []forkInfo
}

// forkInfo describes one fork of an own object.
type forkInfo struct {
	Fork   ID
	Holder Worker
	Age    time.Duration
	Silent time.Duration // since the holder was heard last
	Root   bool
}

// HandleInfo describes a reference that this worker holds.
type HandleInfo struct {
	ID, Fork ID
	Owner    Worker
	Parent   Worker
	State    string
	Code     Code
	Held     bool
	Age      time.Duration
	Children []ID // why it is pinned
}

// Objects describes the own objects in order of their ids.
func (m *Machine) Objects() []ObjectInfo {
	all := make([]ObjectInfo, 0, len(m.objects))
	for _, id := range sortedKeys(m.objects) {
		o := m.objects[id]
		info := ObjectInfo{ID: id, Age: m.now - o.since, Valued: o.valued, Called: o.called, Local: o.local}
		for fork, holder := range o.forks.all() {
			f := forkInfo{Fork: fork, Holder: holder.worker, Age: m.now - holder.since, Root: fork == o.root}
			if p := m.peers[f.Holder]; p != nil {
				f.Silent = m.now - p.lease.lastReceivedAt
			}
			info.Forks = append(info.Forks, f)
		}
		slices.SortFunc(info.Forks, func(a, b forkInfo) int { return compare(a.Fork, b.Fork) })
		all = append(all, info)
	}
	return all
}

// Handles describes the references held, in order of their forks.
func (m *Machine) Handles() []HandleInfo {
	all := make([]HandleInfo, 0, len(m.handles))
	for _, fork := range sortedKeys(m.handles) {
		h := m.handles[fork]
		all = append(all, HandleInfo{
			ID: h.id, Fork: fork, Owner: h.owner, Parent: h.parent.worker, State: [...]string{"pending", "confirmed", "failed"}[h.state],
			Code: h.code, Held: h.held, Age: m.now - h.since, Children: sortedKeys(h.children),
		})
	}
	return all
}

// DropAll drops every reference that the application still holds: the first step of a graceful shutdown.
func (m *Machine) DropAll() {
	for _, fork := range sortedKeys(m.handles) {
		if h := m.handles[fork]; h != nil && h.held && !h.offered {
			if h.state != failed {
				h.code = Closed
			}
			m.Drop(fork)
		}
	}
}

// Idle reports whether no reference, no fork and no control message is left: a worker may leave now.
func (m *Machine) Idle() bool {
	c := m.Counts()
	return c.PendingUsers+c.ConfirmedUsers+c.PendingChildren+c.Forks+c.Offers+c.PendingFutures == 0
}
