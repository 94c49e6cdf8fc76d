// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/ilist"
)

// This file connects sessions with connections: which connection has a session, what it gets back when it opens one again, and when one
// that is away ends.

// sessionLink is what a session has beside its record.
type sessionLink struct {
	conn   *Conn // nil while it is away
	leftAt int64
	claims []leftClaim
	away   ilist.Place[session]
}

// leftClaim is a claim that a session held when its connection ended. It gets it back if it has not been taken meanwhile.
type leftClaim struct {
	claim *claim
	sub   uint32
	turn  uint64
}

const (
	// sessionGrace is how long a session is kept whose connection has ended, and maxSessions how many there are.
	sessionGrace = int64(time.Minute)
	maxSessions  = 1 << 16
)

// hasSessions reports whether the machine offers sessions. One with a log does not: what it remembers of them is not in the log, so a
// request that is sent again after a restart, or to another member of a cluster, could be applied twice. Nor does one with a relay.
func (m *Machine) hasSessions() bool { return m.log == nil && m.config.Relay == nil }

// ofSessions reports whether a request is one that a machine without sessions refuses. Leave and Acked have no reply; they mean nothing
// without a session.
func ofSessions(r *wire.Request) bool {
	return r.Seq != 0 || r.Op == wire.Session || r.Op >= wire.Peek && r.Op <= wire.Arrive
}

func noSessions() error {
	return cohort.New("tcpstore: session", cohort.NotSupported,
		"this store has no sessions, and a gateway cannot use it: it is kept in a folder or on several machines")
}

// openSession is SESSION.
func (m *Machine) openSession(c *Conn, r *wire.Request) error {
	if len(r.Key) != wire.SessionIDSize || len(r.Expected) != wire.SessionIDSize {
		return cohort.Newf("tcpstore: session", cohort.InvalidArgument, "an id of %d and a token of %d bytes, want %d each", len(r.Key),
			len(r.Expected), wire.SessionIDSize)
	}
	if c.session != nil {
		return cohort.New("tcpstore: session", cohort.Protocol, "this connection has a session already")
	}
	m.endAway(sessionGrace)
	if len(m.sessions.byID) >= maxSessions && !m.endAway(0) {
		return cohort.Newf("tcpstore: session", cohort.Exhausted, "%d sessions are open", maxSessions)
	}
	s, err := m.sessions.openSession(sessionID(r.Key), sessionID(r.Expected), uint64(r.Num), r.Ack) //nolint:gosec // as it was sent
	if err != nil {
		return err
	}
	if old := s.link.conn; old != nil {
		m.Refuse(old, cohort.Newf("tcpstore: session", cohort.Aborted, "its session was opened again by %s", c.Peer))
	}
	if s.link.away.Of() != nil {
		m.away.Remove(&s.link.away)
		s.link.away = ilist.Place[session]{}
	}
	c.session, s.link.conn = s, c
	m.takeBack(c, s)
	start := m.begin(c, r.ID)
	c.out.Buf = wire.AppendInt(wire.AppendInt(c.out.Buf, int64(s.last)), wire.SessionWindow) //nolint:gosec // as it was sent
	m.end(c, start)
	return nil
}

// takeBack gives a session the claims again that it held.
func (m *Machine) takeBack(c *Conn, s *session) {
	for _, left := range s.link.claims {
		if have := left.claim; m.claims.byName[have.name] == have && have.holder == (holderID{}) && have.turn == left.turn {
			m.holdClaim(have, m.holderOf(c), c, hostOf(c.Peer), left.sub)
		}
	}
	s.link.claims = nil
}

// detach is called when a connection has ended, before its waits and claims are dropped: its session is away from now on.
func (m *Machine) detach(c *Conn) {
	s := c.session
	if s == nil {
		return
	}
	c.session = nil
	s.link.conn, s.link.leftAt = nil, m.clock.now
	for _, have := range m.claims.byHolder[c.holdings.holder] {
		s.link.claims = append(s.link.claims, leftClaim{have, have.sub, have.turn + 1}) // which it has when it is let go of
	}
	m.away.Add(&s.link.away, s)
}

// endAway ends sessions that have been away for a time, and reports whether it has ended any.
func (m *Machine) endAway(grace int64) (ended bool) {
	for p := m.away.First(); p != nil && m.clock.now-p.Of().link.leftAt >= grace; p = m.away.First() {
		s := p.Of()
		m.away.Remove(p)
		m.sessions.end(s)
		if ended = true; grace == 0 {
			break
		}
	}
	return ended
}

// dropSession forgets the session of a connection, with all others of the store. The one that cleared it goes on.
func (m *Machine) dropSession(c *Conn, goesOn bool) {
	if c.session == nil {
		return
	}
	if goesOn {
		for _, t := range c.session.open {
			m.sessions.drop(c.session, t)
		}
		return
	}
	m.sessions.end(c.session)
	c.session = nil
}

// leaveSession is LEAVE: a client of a session lets go of its claims. The last of them is the session.
func (m *Machine) leaveSession(c *Conn, r *wire.Request) error {
	if c.session == nil {
		return nil // it has no reply
	}
	if r.Sub != 0 {
		m.releaseSub(c.holdings.holder, r.Sub)
		return nil
	}
	m.release(c.holdings.holder)
	m.sessions.end(c.session)
	c.session = nil
	return nil
}

// acked is ACKED.
func (m *Machine) acked(c *Conn, r *wire.Request) error {
	if c.session != nil {
		m.sessions.settle(c.session, uint64(r.Num)) //nolint:gosec // as it was sent
	}
	return nil
}
