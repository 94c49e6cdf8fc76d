// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// A request is applied when all of it is there, so until then it takes memory. Small beginnings are always taken. A request
// that is going to be larger than keepBuffer is granted its room as soon as it is known how large it is, before it is read;
// where there is none it is not read from, and waits in the socket until others have sent theirs. So every client that sends is
// served, however many they are, and who waits is not cut. As long as some wait, those that have room and do not send give
// way.
//
// The room is three quarters of the share of requests; the rest is for beginnings, which are read before anything is known of
// them. One client may always go on, also with a request that is larger than that, or one such as MULTI_SET that turns out
// to be.

// allowance is what one connection has of the room.
type allowance struct {
	granted int  // bytes that the unfinished request may take
	wants   int  // when starved: bytes that it needs
	starved bool // it is not read from until there is room for its request
}

// BeginningSize is how many bytes should be read at a time from a client that has no room granted, while the beginnings of
// large requests have no room: they are looked at in small pieces.
const BeginningSize = keepBuffer

// Scarce reports whether the beginnings of large requests have no room.
func (m *Machine) Scarce() bool { return m.admission.in > m.admission.shares.in/4 }

// Granted reports whether c has room for the request that it has begun.
func (c *Conn) Granted() bool { return c.allowance.granted > 0 }

// ReadSize is how many bytes should be read from c at a time, or 0 when it does not matter.
func (m *Machine) ReadSize(c *Conn) int {
	if !m.Scarce() || c.Granted() {
		return 0
	}
	return BeginningSize
}

// keep puts data behind what c has sent before. It returns false when c was cut.
func (m *Machine) keep(c *Conn, data []byte) bool {
	if need := len(c.in.buf) + len(data); need > cap(c.in.buf) {
		before := cap(c.in.buf)
		room := min(2*before, c.allowance.granted) // copies are few, and no more is taken than was granted
		m.enforce(max(need, room))                 // both are there for a moment
		if c.closed {
			return false
		}
		m.turn.copied(len(c.in.buf))
		c.in.buf = append(make([]byte, 0, max(need, room)), c.in.buf...)
		m.admission.in += int64(cap(c.in.buf) - before)
		c.in.counted += cap(c.in.buf) - before
	}
	c.in.buf = append(c.in.buf, data...)
	m.turn.copied(len(data))
	return true
}

// seekRoom makes sure that there is room for the request that c has begun, or has it wait.
func (m *Machine) seekRoom(c *Conn) {
	if c.Paused() {
		return // it is not read from anyway
	}
	need := 0
	if len(c.in.buf) > 0 {
		if need = c.in.parsed.Need(); c.dialect == wire.Native {
			need = c.in.frame
		}
		need = max(need, len(c.in.buf))
	}
	switch {
	case need <= keepBuffer:
		m.grant(c, 0)
	case need <= c.allowance.granted:
		m.grant(c, need)
	case c.allowance.granted > 0: // it turns out to be larger, and goes before those that hold nothing yet
		if m.requestFits(c, need) || m.admission.active == 1 {
			m.grant(c, need)
		} else {
			m.admission.active--
			m.queueRequest(c, need)
		}
	case m.admission.requests.Empty() && (m.requestFits(c, need) || m.admission.active == 0):
		m.grant(c, need)
	default:
		m.queueRequest(c, need)
	}
}

func (m *Machine) queueRequest(c *Conn, need int) {
	c.allowance.starved, c.allowance.wants = true, need
	m.admission.requests.Push(c, hostOf(c.Peer), c.allowance.granted > 0, m.clock.counted)
}

// requestFits reports whether there is room for a request of c that takes need bytes.
func (m *Machine) requestFits(c *Conn, need int) bool {
	return m.admission.granted+int64(need-c.allowance.granted) <= m.admission.shares.in-m.admission.shares.in/4
}

// grant gives c, which is read from, room for n bytes.
func (m *Machine) grant(c *Conn, n int) {
	m.admission.granted += int64(n - c.allowance.granted)
	if had, has := c.allowance.granted > 0, n > 0; has && !had {
		m.admission.active++
	} else if had && !has {
		m.admission.active--
	}
	c.allowance.granted = n
}

// admitRequests lets those go on that there is room for.
func (m *Machine) admitRequests() {
	for c, found := m.admission.requests.First(); found; c, found = m.admission.requests.First() {
		if m.admission.active > 0 && !m.requestFits(c, c.allowance.wants) {
			if !m.relieve() {
				return
			}
			continue // some may have been cut
		}
		m.admission.requests.Pop()
		if c.allowance.starved = false; c.allowance.granted > 0 {
			m.admission.active++
		}
		m.grant(c, c.allowance.wants)
		c.in.pace.Start(m.clock.counted)
		m.conns.touch(c) // it may be read from again
	}
}

// leaveRequests forgets a client that is closed.
func (m *Machine) leaveRequests(c *Conn) {
	if c.allowance.starved {
		c.allowance.starved = false
		if c.allowance.granted > 0 {
			m.admission.active++ // grant takes it off again
		}
		m.turn.work += uint64(m.admission.requests.Left(hostOf(c.Peer))) //nolint:gosec // not negative
	}
	m.grant(c, 0)
}

// slowSender reports whether c has room for a request and does not send it. Who holds no more than a small beginning is
// never slow.
func (m *Machine) slowSender(c *Conn) bool {
	pause := senderPause
	if !m.admission.requests.Empty() { // the longer others wait, the less
		pause = max(pause-(m.clock.counted-m.admission.requests.Since()), leastPause)
	}
	return c.allowance.granted > 0 && !c.Paused() && c.in.pace.Slow(m.clock.counted, pause, int64(len(c.in.buf)), senderRate)
}

// Unfinished reports whether connections hold unfinished requests: the driver calls Expire now and then.
func (m *Machine) Unfinished() bool { return m.admission.in > 0 }

// Expire looks at all unfinished requests and cuts clients whose request was where it is at each of the last looks before.
func (m *Machine) Expire(looks int) {
	m.endAway(sessionGrace)
	for i := len(m.conns.all) - 1; i >= 0; i-- {
		m.turn.work++
		if c := m.conns.all[i]; len(c.in.buf) > 0 && !c.Paused() {
			if c.in.looks++; c.in.looks > looks {
				m.Refuse(c, cohort.Newf("tcpstore: serve", cohort.Exhausted,
					"the client left a request unfinished for too long: %d bytes of it are here", len(c.in.buf)))
			}
		}
		i = min(i, len(m.conns.all))
	}
}
