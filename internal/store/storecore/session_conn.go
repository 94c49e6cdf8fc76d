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

// sessionLink is what a session has beside its record. With a log it differs from machine to machine.
type sessionLink struct {
	conn   *Conn // nil while it is away, or has its connection elsewhere
	leftAt int64
	away   ilist.Place[session]
	ending int64 // the bytes of a session whose end is under way to the log; 0: it is not
}

const (
	// sessionGrace is how long a session is kept whose connection has ended, and maxSessions how many there are.
	sessionGrace = int64(time.Minute)
	maxSessions  = 1 << 16
)

// hasSessions reports whether the machine offers sessions. One with a relay does not.
func (m *Machine) hasSessions() bool { return m.config.Relay == nil }

// openSession is SESSION.
func (m *Machine) openSession(c *Conn, r *wire.Request) error {
	if err := m.mayOpenSession(c, r); err != nil {
		return err
	}
	s, err := m.sessions.openSession(sessionID(r.Key), sessionID(r.Expected), uint64(r.Num), r.Ack) //nolint:gosec // as it was sent
	if err != nil {
		return err
	}
	m.attach(s, c, m.holderOf(c), hostOf(c.Peer))
	m.replySession(c, r.ID, s)
	return nil
}

// mayOpenSession returns what is wrong with SESSION, whatever sessions there are, and makes room for one more.
func (m *Machine) mayOpenSession(c *Conn, r *wire.Request) error {
	if len(r.Key) != wire.SessionIDSize || len(r.Expected) != wire.SessionIDSize {
		return cohort.Newf("tcpstore: session", cohort.InvalidArgument, "an id of %d and a token of %d bytes, want %d each", len(r.Key),
			len(r.Expected), wire.SessionIDSize)
	}
	if c.session != nil || c.logged.opening {
		return cohort.New("tcpstore: session", cohort.Protocol, "this connection has a session already")
	}
	m.endAway(sessionGrace)
	if m.sessions.byID[sessionID(r.Key)] == nil && len(m.sessions.byID) >= maxSessions && !m.endAway(0) {
		return cohort.Newf("tcpstore: session", cohort.Exhausted, "%d sessions are open", maxSessions)
	}
	return nil
}

// attach gives a session that was opened its connection, c, which is nil if that is not open here. It gets the claims again that it had.
func (m *Machine) attach(s *session, c *Conn, holder holderID, host string) {
	if old := s.link.conn; old != nil {
		by := "another connection"
		if c != nil {
			by = c.Peer
		}
		m.Refuse(old, cohort.Newf("tcpstore: session", cohort.Aborted, "its session was opened again by %s", by))
	}
	m.release(s.holder)
	m.sessions.hold(s, holder)
	m.staysHere(s)
	if s.link.conn = c; c != nil {
		c.session = s
	} else {
		m.goesAway(s)
	}
	left := s.left
	s.left = nil
	for _, have := range left {
		m.holdClaim(have, holder, c, host, have.sub)
	}
}

func (m *Machine) replySession(c *Conn, id uint32, s *session) {
	start := m.begin(c, id)
	c.out.Buf = wire.AppendInt(wire.AppendInt(c.out.Buf, int64(s.last)), wire.SessionWindow) //nolint:gosec // as it was sent
	m.end(c, start)
}

// goesAway notes that a session has no connection here from now on, and staysHere that it does not end for that.
func (m *Machine) goesAway(s *session) {
	s.link.conn, s.link.leftAt = nil, m.clock.now
	m.away.Add(&s.link.away, s)
}

func (m *Machine) staysHere(s *session) {
	if s.link.away.Of() != nil {
		m.away.Remove(&s.link.away)
		s.link.away = ilist.Place[session]{}
	}
	m.ending -= s.link.ending
	s.link.ending = 0
}

// detach is called when a connection has ended, before its waits and claims are dropped: its session is away from now on.
func (m *Machine) detach(c *Conn) {
	if s := c.session; s != nil {
		c.session = nil
		m.goesAway(s)
	}
}

// endSession forgets a session, and lets go of its claims.
func (m *Machine) endSession(s *session) {
	m.staysHere(s)
	if c := s.link.conn; c != nil {
		c.session, s.link.conn = nil, nil
	}
	m.sessions.end(s)
	m.release(s.holder)
}

// endAway ends sessions that have been away for a time, and reports whether it has ended any. With 0 it is only the first one.
func (m *Machine) endAway(grace int64) (ended bool) {
	if m.log != nil && m.log.follows {
		return false // who has the connections decides
	}
	for p := m.away.First(); p != nil && m.clock.now-p.Of().link.leftAt >= grace; p = m.away.First() {
		s := p.Of()
		if m.log == nil {
			m.endSession(s)
		} else {
			m.staysHere(s)
			s.link.ending = s.bytes + s.ringSize()
			m.ending += s.link.ending
			m.proposeLeave(s, 0)
		}
		if ended = true; grace == 0 {
			break
		}
	}
	return ended
}

// dropSessions forgets all sessions but one, which goes on in the store that was cleared.
func (m *Machine) dropSessions(by *session) {
	for _, s := range m.sessions.byID {
		if s != by {
			m.endSession(s)
		}
	}
	if by == nil {
		return
	}
	by.left = nil
	for _, t := range by.open {
		m.sessions.drop(by, t)
	}
}

// leaveSession is LEAVE: a client of a session lets go of its claims. The last of them is the session. It has no reply.
func (m *Machine) leaveSession(c *Conn, r *wire.Request) error {
	if c.session != nil {
		m.leftSession(c.session, r.Sub)
	}
	return nil
}

func (m *Machine) leftSession(s *session, sub uint32) {
	if sub != 0 {
		m.releaseSub(s.holder, sub)
		return
	}
	m.endSession(s)
}

// acked is ACKED.
func (m *Machine) acked(c *Conn, r *wire.Request) error {
	if c.session != nil {
		m.sessions.settle(c.session, uint64(r.Num)) //nolint:gosec // as it was sent
	}
	return nil
}
