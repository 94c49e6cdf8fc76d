// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"slices"
	"time"
)

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
