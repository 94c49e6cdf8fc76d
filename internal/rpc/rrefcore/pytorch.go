// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"slices"
	"time"
)

// When the pipe to a PyTorch owner is cut, it is not known whether the creating call that was on it has arrived. PyTorch knows an
// object only once its function has ended, and ignores a delete that comes before. So the delete is repeated: a late function
// would leave an object that is never deleted, and PyTorch's shutdown would wait for it. Nothing says when that is over, except
// for the end of the owner.

// lostCreation is a creation whose answer will not come.
type lostCreation struct {
	msg   Message // its delete
	at    Time    // when it is sent again
	pause Time
}

// How often such a delete is sent again, and how many creations of one owner are remembered.
const (
	firstRepeat = time.Second
	lastRepeat  = 10 * time.Second
	maxLost     = 4096
)

// CreateLost reports that the connection has ended before the creating call was answered.
func (m *Machine) CreateLost(fork ID) {
	if h := m.handles[fork]; h != nil {
		h.lost = m.kindOf(h.owner) == PyTorch
		m.CreateReplied(fork, false)
	}
}

// repeatDelete remembers that the delete of a lost creation was sent.
func (m *Machine) repeatDelete(to Worker, msg Message) {
	p := m.peer(to)
	if len(p.lost) >= maxLost {
		p.lost = slices.Delete(p.lost, 0, 1)
	}
	p.lost = append(p.lost, lostCreation{msg, m.now + firstRepeat, firstRepeat})
}

// retryLost sends the deletes of lost creations whose time has come.
func (m *Machine) retryLost(p *peer) {
	for i := range p.lost {
		x := &p.lost[i]
		if m.now < x.at {
			continue
		}
		x.pause = min(2*x.pause, lastRepeat)
		x.at = m.now + x.pause
		if !slices.ContainsFunc(p.requests, func(r *request) bool { return r.msg == x.msg }) {
			m.send(p.id, x.msg)
		}
	}
}

// A worker that leaves waits until its children are accepted. Some of them will never be: a PyTorch worker opens one pipe to us in its
// life, so nothing comes from it once that has ended; and a message to it that was lost cannot be withdrawn. Such children are
// stuck, and are not waited for.

// stuckAfter is how long a child whose message was lost may take to be accepted all the same.
const stuckAfter = 5 * time.Second

// doubt notes that a message with a reference may not have arrived at a PyTorch worker.
func (m *Machine) doubt(w Wire) {
	if h := m.pins[w.Fork]; h != nil {
		if h.doubtful == nil {
			h.doubtful = map[ID]Time{}
		}
		h.doubtful[w.Fork] = m.now
	}
}

// stuck calls fn with the children that nothing will come for. deaf tells from which workers nothing comes any more; only PyTorch
// workers are asked about.
func (m *Machine) stuck(deaf func(Worker) bool, fn func(h *handle, child ID)) {
	silent := map[Worker]bool{}
	for id, p := range m.peers {
		silent[id] = p.kind == PyTorch && deaf(id)
	}
	for _, fork := range sortedKeys(m.handles) {
		h := m.handles[fork]
		if h == nil {
			continue // it has ended with another one
		}
		for child, to := range h.children {
			if since, doubtful := h.doubtful[child]; silent[to.worker] || doubtful && m.now-since >= stuckAfter {
				fn(h, child)
			}
		}
	}
}

// Stuck counts them.
func (m *Machine) Stuck(deaf func(Worker) bool) (n int) {
	m.stuck(deaf, func(*handle, ID) { n++ })
	return n
}

// UnpinStuck unpins their parents. The children may be unknown to their owners, so it is for a worker that leaves.
func (m *Machine) UnpinStuck(deaf func(Worker) bool) {
	m.stuck(deaf, func(h *handle, child ID) {
		m.unpin(h, child)
		m.settle(h)
	})
}
