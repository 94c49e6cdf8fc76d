// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"github.com/cohort-dist/cohort"
)

// This file applies the commands of sessions. What a request of an older generation of its session would change is changed by none: it was
// sent again over the next connection, or will be.

// opened notes that the command which opens the session of a connection is not under way any more.
func (m *Machine) opened(k *Command) {
	if k != nil && k.conn != nil {
		k.conn.logged.opening = false
	}
}

// notOpened notes that the command was not logged. What is numbered in a new session was not applied before.
func (m *Machine) notOpened(k *Command, reason error) {
	if m.opened(k); k.conn != nil && k.opens == 1 {
		k.conn.logged.refused = reason
	}
}

// applySession opens a session, whose connection may be elsewhere.
func (m *Machine) applySession(p *parsedCommand, c *Conn) error {
	c.logged.opening = false
	s, err := m.sessions.openSession(p.session.id, p.session.token, p.session.generation, p.session.ack)
	if err != nil {
		return err
	}
	here := c
	if c == m.log.ghost {
		here = nil
	}
	m.attach(s, here, p.holder, string(p.host))
	if here != nil {
		m.replySession(c, p.request.ID, s)
	}
	return nil
}

// applyLeave forgets an answer, lets go of what a client of a session claims, or ends the session.
func (m *Machine) applyLeave(p *parsedCommand) {
	s := m.sessions.byID[p.session.id]
	switch {
	case s == nil:
	case p.kind == kindAcked:
		m.sessions.settle(s, p.session.seq)
	case s.generation == p.session.generation:
		m.leftSession(s, uint32(p.session.sub)) //nolint:gosec // as it was proposed
	}
}

// applyNumbered applies a request of a session, or recalls its answer.
func (m *Machine) applyNumbered(p *parsedCommand, c *Conn, k *Command) error {
	s, r := m.sessions.byID[p.session.id], &p.request
	if s == nil || s.generation != p.session.generation {
		m.returnItem(k, r.Key)
		return cohort.New("tcpstore: session", cohort.PeerLost,
			"the session of this connection has ended, or goes on over another one: whether the request was applied before is not known")
	}
	if p.session.seq == 0 {
		return m.applyRequest(p, c, k, s)
	}
	waits := r.Wait || arrives[r.Op]
	m.sessions.acknowledge(s, min(p.session.ack, p.session.seq))
	if v, a, err := m.sessions.lookup(s, p.session.seq, waits); v != fresh {
		if m.returnItem(k, r.Key); c != m.log.ghost {
			m.recall(c, r, s, v, a, err)
		}
		return nil
	}
	m.recorder = recorder{c, r.ID, s, p.session.seq, waits}
	err := m.applyRequest(p, c, k, s)
	if err != nil {
		m.refuseRequest(c, r.ID, err)
	} else {
		m.applied(c, r, nil)
	}
	m.recorder = recorder{}
	return nil
}

// returnItem leaves the item that was on its way to a pop that waited to others.
func (m *Machine) returnItem(k *Command, key []byte) {
	if k == nil || k.pop == nil {
		return
	}
	if !k.pop.gone {
		m.forget(k.pop)
	}
	if !m.servePops(key) {
		m.announce(key)
		m.wake()
	}
}
