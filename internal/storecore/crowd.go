// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"strconv"
)

// When many clients ask for large values at once, the replies that wait to be sent may take all of their share. Nobody is
// cut for that, since nobody would know why: a request whose reply has no room is left unread, and a wait that is over is
// kept, until others have read theirs. Then those that wait get one reply each in turn.

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
	c.inCrowd = true
	m.crowd.push(c, false, m.patience)
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

// leaveCrowd forgets a client that is closed.
func (m *Machine) leaveCrowd(c *Conn) {
	c.crowded, c.held = false, nil
	if c.inCrowd {
		c.inCrowd = false
		m.work += uint64(m.crowd.left(c)) //nolint:gosec // not negative
	}
}

// Crowded reports whether clients wait for room: the driver calls Admit after each step, and now and then.
func (m *Machine) Crowded() bool { return !m.crowd.empty() || !m.senders.empty() }

// Admit lets clients go on that wait for room, in their order, as far as there is room now.
func (m *Machine) Admit() {
	m.admitSenders()
	for n := m.crowd.len(); n > 0; n-- { // once around
		c := m.crowd.first()
		if c == nil {
			return
		}
		needs := m.nextReply(c)
		if needs > 0 && m.replyFits(needs) != nil {
			if !m.relieve() {
				return
			}
			n++ // look again: some may have been cut
			continue
		}
		m.crowd.pop()
		c.inCrowd = false
		if needs > 0 {
			m.reply(c)
		}
		if !c.closed && m.nextReply(c) > 0 {
			m.enqueueReply(c)
		}
	}
}
