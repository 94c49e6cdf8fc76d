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
