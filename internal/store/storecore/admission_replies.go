// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"strconv"
)

// When many clients ask for large values at once, the replies that wait to be sent may take all of their share. No client is
// cut for that, since its user would not know why: a request whose reply has no room is left unread, and a wait that is over is
// kept, until others have read theirs. Then those that wait get one reply each in turn.

// held is the replies that one connection waits for.
type held struct {
	queued  bool    // it is in the line
	request bool    // its next request waits for room for the reply
	needs   int     // then: bytes of that
	waits   []*wait // those that are over
}

// noRoomError says that a reply of so many bytes has no room now.
type noRoomError int

func (e noRoomError) Error() string {
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
	if len(c.held.waits) > 2*c.holdings.nWaits+16 { // waits that were given up meanwhile
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
	m.admission.replies.Push(c, hostOf(c.Peer), false, m.clock.counted)
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

// leaveReplies forgets a client that is closed.
func (m *Machine) leaveReplies(c *Conn) {
	c.held.request, c.held.waits = false, nil
	if c.held.queued {
		c.held.queued = false
		m.turn.work += uint64(m.admission.replies.Left(hostOf(c.Peer))) //nolint:gosec // not negative
	}
}

// Queued reports whether clients wait for room: the driver calls Admit after each step, and now and then.
func (m *Machine) Queued() bool {
	return len(m.admission.replies.hosts)+len(m.admission.requests.hosts) > 0
}

// Admit lets clients go on that wait for room, in their order, as far as there is room now and this turn allows.
func (m *Machine) Admit() {
	m.admitRequests()
	end := m.turn.work + heavyWork
	for n := m.admission.replies.Len(); n > 0; n-- { // once around
		if m.turn.work >= end {
			m.turn.admit = true
			return
		}
		c, found := m.admission.replies.First()
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
		m.admission.replies.Pop()
		c.held.queued = false
		if needs > 0 {
			m.reply(c)
		}
		if !c.closed && m.nextReply(c) > 0 {
			m.enqueueReply(c)
		}
	}
}

// fairQueue is who waits. Make it with [New].
type fairQueue[T any] struct {
	gone   func(T) bool
	hosts  []*hostQueue[T] // in the order of their turns
	byName map[string]*hostQueue[T]
	since  int64 // when the line was empty last
}

// hostQueue is the members of one host. Those that are gone stay among them for a while.
type hostQueue[T any] struct {
	name    string
	members []T
	gone    int // how many
}

// newFairQueue returns an empty line. gone reports that a member does not wait any more: Left is called when that has become so.
func newFairQueue[T any](gone func(T) bool) fairQueue[T] {
	return fairQueue[T]{gone: gone, byName: map[string]*hostQueue[T]{}}
}

// Empty reports whether the queue is empty.
func (l *fairQueue[T]) Empty() bool { return len(l.hosts) == 0 }

// Since is when the first came to the line while it was empty.
func (l *fairQueue[T]) Since() int64 { return l.since }

// Len is how many are in the line.
func (l *fairQueue[T]) Len() int {
	n := 0
	for _, h := range l.hosts {
		n += len(h.members)
	}
	return n
}

// Push puts a member behind the others of its host, or before them.
func (l *fairQueue[T]) Push(member T, hostName string, before bool, now int64) {
	if l.Empty() {
		l.since = now
	}
	h := l.byName[hostName]
	if h == nil {
		h = &hostQueue[T]{name: hostName}
		l.byName[hostName] = h
		l.hosts = append(l.hosts, h)
	}
	if before {
		h.members = slices.Insert(h.members, 0, member)
	} else {
		h.members = append(h.members, member)
	}
}

// First returns the one whose turn it is; false when the queue is empty.
func (l *fairQueue[T]) First() (member T, found bool) {
	for !l.Empty() {
		h := l.hosts[0]
		if m := h.members[0]; !l.gone(m) {
			return m, true
		}
		h.dropFirst()
		h.gone--
		l.dropEmpty(h)
	}
	return member, false
}

// Pop takes the first one off the line. Its host goes to the end.
func (l *fairQueue[T]) Pop() {
	h := l.hosts[0]
	h.dropFirst()
	l.hosts = append(slices.Delete(l.hosts, 0, 1), h)
	l.dropEmpty(h)
}

// Left notes that a member of a host is gone, and returns the work that it took: when most of a host's are gone they are removed.
func (l *fairQueue[T]) Left(hostName string) (work int) {
	h := l.byName[hostName]
	if h.gone++; h.gone <= len(h.members)/2 {
		return 0
	}
	work = len(h.members)
	h.members = slices.DeleteFunc(h.members, l.gone)
	h.gone = 0
	l.dropEmpty(h)
	return work
}

func (h *hostQueue[T]) dropFirst() {
	var none T
	h.members[0] = none
	h.members = h.members[1:]
}

func (l *fairQueue[T]) dropEmpty(h *hostQueue[T]) {
	if len(h.members) > 0 {
		return
	}
	delete(l.byName, h.name)
	at := slices.Index(l.hosts, h)
	l.hosts = slices.Delete(l.hosts, at, at+1)
}
