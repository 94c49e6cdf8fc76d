// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"strconv"
)

// When many clients ask for large values at once, the replies that wait to be sent may take all of their share. Nobody is
// cut for that, since nobody would know why: a request whose reply has no room is left unread, and a wait that is over is
// kept, until others have read theirs. Then those that wait get one reply each in turn. In the same way a client that begins
// a large request when there is no room for more of them is not read from until others have sent theirs. One of those, the
// leader, goes on nevertheless.
type crowd struct {
	replies []*Conn // those whose reply waits, in the order in which they get one
	gone    int     // how many of them are closed
	since   int64   // when the first of them came
	senders []*Conn // not read from
	leader  *Conn   // may send although there is no room
}

// crowdedError says that a reply of so many bytes has no room now.
type crowdedError int

func (e crowdedError) Error() string {
	return "no room for a reply of " + strconv.Itoa(int(e)) + " bytes"
}

// hold leaves the request that c has sent for later.
func (m *Machine) hold(c *Conn, needs int) {
	c.crowded, c.needs = true, needs
	m.enqueueReply(c)
}

// holdWait keeps a wait that is over until there is room for its reply.
func (m *Machine) holdWait(w *wait, needs int) {
	c := w.conn
	w.held, w.needs = true, needs
	if len(c.held) > 2*c.nWaits+16 { // waits that were given up meanwhile
		m.work += uint64(len(c.held))
		c.held = slices.DeleteFunc(c.held, func(w *wait) bool { return w.gone || !w.held })
	}
	c.held = append(c.held, w)
	m.enqueueReply(c)
}

func (m *Machine) enqueueReply(c *Conn) {
	if c.inCrowd {
		return
	}
	if c.inCrowd = true; len(m.crowd.replies) == 0 {
		m.crowd.since = m.now
	}
	m.crowd.replies = append(m.crowd.replies, c)
}

// nextReply returns how many bytes c's next reply needs, or 0 when none waits any more.
func (m *Machine) nextReply(c *Conn) int {
	for len(c.held) > 0 {
		if w := c.held[0]; !w.gone && w.missing == 0 {
			return w.needs
		}
		m.work++
		c.held[0].held = false // the key is gone again: it goes on waiting
		c.held[0] = nil
		c.held = c.held[1:]
	}
	c.held = nil
	if c.crowded {
		return c.needs
	}
	return 0
}

// reply gives c the reply that it waits for.
func (m *Machine) reply(c *Conn) {
	if len(c.held) > 0 {
		w := c.held[0]
		c.held[0] = nil
		c.held = c.held[1:]
		w.held = false
		m.finish(w)
		return
	}
	c.crowded = false
	m.touch(c) // it may be read from again
	m.Receive(c, nil)
}

// ReadSize is how many bytes should be read from c at a time, or 0 when it does not matter: as long as there is no room
// for large requests, one that begins is looked at in small pieces.
func (m *Machine) ReadSize(c *Conn) int {
	if m.inBytes <= m.shares.in || len(c.in) > keepBuffer || m.crowd.leader == c {
		return 0
	}
	return keepBuffer
}

// keep puts data behind what c has sent before. It returns false when c was cut.
func (m *Machine) keep(c *Conn, data []byte) bool {
	if len(c.in)+len(data) > cap(c.in) {
		before := cap(c.in)
		m.enforce(len(c.in) + len(data) + cap(c.in)/4) // both are there for a moment
		if c.closed {
			return false
		}
		m.copied(len(c.in))
		c.in = grow(c.in, len(data))
		m.inBytes += int64(cap(c.in) - before)
		c.countedIn += cap(c.in) - before
	}
	c.in = append(c.in, data...)
	m.copied(len(data))
	if m.inBytes <= m.shares.in {
		return true
	}
	m.relieve()
	return !c.closed
}

// starve has c, which has begun a request that is not all there, wait until there is room for it. Those that have sent much
// already go on: they are the ones that make room.
func (m *Machine) starve(c *Conn) {
	switch {
	case m.inBytes <= m.shares.in || c.starved || m.crowd.leader == c:
	case m.crowd.leader == nil:
		m.crowd.leader = c
	default:
		c.starved = true
		m.crowd.senders = append(m.crowd.senders, c)
	}
}

// leaveCrowd forgets a client that is closed.
func (m *Machine) leaveCrowd(c *Conn) {
	if m.crowd.leader == c {
		m.crowd.leader = nil
	}
	c.starved, c.crowded, c.held = false, false, nil // the list of senders is looked through in Admit
	if !c.inCrowd {
		return
	}
	c.inCrowd = false
	if m.crowd.gone++; m.crowd.gone > len(m.crowd.replies)/2 {
		m.work += uint64(len(m.crowd.replies))
		m.crowd.replies = slices.DeleteFunc(m.crowd.replies, func(c *Conn) bool { return c.closed })
		m.crowd.gone = 0
	}
}

// Crowded reports whether clients wait for room: the driver calls Admit after each step, and now and then.
func (m *Machine) Crowded() bool { return len(m.crowd.replies) > 0 || len(m.crowd.senders) > 0 }

// Admit lets clients go on that wait for room, in their order, as far as there is room now.
func (m *Machine) Admit() {
	m.admitSenders()
	for n := len(m.crowd.replies); n > 0 && len(m.crowd.replies) > 0; n-- { // once around
		c := m.crowd.replies[0]
		needs := 0
		if !c.closed {
			needs = m.nextReply(c)
		}
		if needs > 0 && m.replyFits(needs) != nil {
			if !m.relieve() {
				return
			}
			n++ // look again: some may have been cut
			continue
		}
		if m.crowd.replies = slices.Delete(m.crowd.replies, 0, 1); c.closed {
			m.crowd.gone--
			continue
		}
		c.inCrowd = false
		if needs > 0 {
			m.reply(c)
		}
		if !c.closed && m.nextReply(c) > 0 {
			m.enqueueReply(c)
		}
	}
}

func (m *Machine) admitSenders() {
	for len(m.crowd.senders) > 0 {
		c := m.crowd.senders[0]
		full := m.inBytes > m.shares.in-m.shares.in/8
		if !c.closed && full && m.crowd.leader != nil {
			if !m.relieve() {
				return
			}
			continue
		}
		if m.crowd.senders = slices.Delete(m.crowd.senders, 0, 1); c.closed {
			continue
		}
		if full {
			m.crowd.leader = c
		}
		c.starved, c.inMoved, c.inSince = false, m.now, m.now
		m.touch(c) // it may be read from again
	}
}
