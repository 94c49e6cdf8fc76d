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

// held is the replies that one connection waits for.
type held struct {
	queued  bool    // it is in the line
	request bool    // its next request waits for room for the reply
	needs   int     // then: bytes of that
	waits   []*wait // those that are over
}

// crowdedError says that a reply of so many bytes has no room now.
type crowdedError int

func (e crowdedError) Error() string {
	return "no room for a reply of " + strconv.Itoa(int(e)) + " bytes"
}

// hold leaves the request that c has sent for later.
func (m *Machine) hold(c *Conn, needs int) {
	c.held.request, c.held.needs = true, needs
	m.enqueueReply(c)
}

// holdWait keeps a wait that is over until there is room for its reply.
func (m *Machine) holdWait(w *wait, needs int) {
	c := w.conn
	w.held, w.needs = true, needs
	if len(c.held.waits) > 2*c.stakes.nWaits+16 { // waits that were given up meanwhile
		m.turn.work += uint64(len(c.held.waits))
		c.held.waits = slices.DeleteFunc(c.held.waits, func(w *wait) bool { return w.gone || !w.held })
	}
	c.held.waits = append(c.held.waits, w)
	m.enqueueReply(c)
}

func (m *Machine) enqueueReply(c *Conn) {
	if c.held.queued {
		return
	}
	c.held.queued = true
	m.crowd.Push(c, hostOf(c.Peer), false, m.clock.patience)
}

// nextReply returns how many bytes c's next reply needs, or 0 when none waits any more.
func (m *Machine) nextReply(c *Conn) int {
	for len(c.held.waits) > 0 {
		if w := c.held.waits[0]; !w.gone && w.missing == 0 {
			return w.needs
		}
		m.turn.work++
		c.held.waits[0].held = false // the key is gone again: it goes on waiting
		c.held.waits[0] = nil
		c.held.waits = c.held.waits[1:]
	}
	c.held.waits = nil
	if c.held.request {
		return c.held.needs
	}
	return 0
}

// reply gives c the reply that it waits for.
func (m *Machine) reply(c *Conn) {
	if len(c.held.waits) > 0 {
		w := c.held.waits[0]
		c.held.waits[0] = nil
		c.held.waits = c.held.waits[1:]
		w.held = false
		m.finish(w)
		return
	}
	c.held.request = false
	m.conns.touch(c) // it may be read from again
	m.Receive(c, nil)
}

// leaveOverBudget forgets a client that is closed.
func (m *Machine) leaveOverBudget(c *Conn) {
	c.held.request, c.held.waits = false, nil
	if c.held.queued {
		c.held.queued = false
		m.turn.work += uint64(m.crowd.Left(hostOf(c.Peer))) //nolint:gosec // not negative
	}
}

// OverBudget reports whether clients wait for room: the driver calls Admit after each step, and now and then.
func (m *Machine) OverBudget() bool { return !m.crowd.Empty() || !m.senders.Empty() }

// Admit lets clients go on that wait for room, in their order, as far as there is room now and this turn allows.
func (m *Machine) Admit() {
	m.admitSenders()
	end := m.turn.work + heavyWork
	for n := m.crowd.Len(); n > 0; n-- { // once around
		if m.turn.work >= end {
			m.turn.admit = true
			return
		}
		c, found := m.crowd.First()
		if !found {
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
		m.crowd.Pop()
		c.held.queued = false
		if needs > 0 {
			m.reply(c)
		}
		if !c.closed && m.nextReply(c) > 0 {
			m.enqueueReply(c)
		}
	}
}
