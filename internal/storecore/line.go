// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import "slices"

// line is who waits for room. Hosts take turns, and the connections of one host have their order: however many of them wait,
// a connection from elsewhere waits for one of theirs.
type line struct {
	hosts  []*waitingHost // in the order of their turns
	byName map[string]*waitingHost
	since  int64 // when the line was empty last
}

// waitingHost is the connections of one host. Those that were closed meanwhile stay among them for a while.
type waitingHost struct {
	name  string
	conns []*Conn
	gone  int // how many are closed
}

func (l *line) empty() bool { return len(l.hosts) == 0 }

// len is how many connections are in the line.
func (l *line) len() int {
	n := 0
	for _, h := range l.hosts {
		n += len(h.conns)
	}
	return n
}

// push puts c behind the others of its host, or before them.
func (l *line) push(c *Conn, before bool, now int64) {
	if l.empty() {
		l.since = now
	}
	name := hostOf(c.Peer)
	h := l.byName[name]
	if h == nil {
		h = &waitingHost{name: name}
		if l.byName == nil {
			l.byName = map[string]*waitingHost{}
		}
		l.byName[name] = h
		l.hosts = append(l.hosts, h)
	}
	if before {
		h.conns = slices.Insert(h.conns, 0, c)
	} else {
		h.conns = append(h.conns, c)
	}
}

// first returns whose turn it is, or nil.
func (l *line) first() *Conn {
	for !l.empty() {
		h := l.hosts[0]
		if c := h.conns[0]; !c.closed {
			return c
		}
		h.conns[0] = nil
		h.conns = h.conns[1:]
		h.gone--
		l.dropEmpty(h)
	}
	return nil
}

// pop takes the one whose turn it was out of the line. The next turn is another host's.
func (l *line) pop() {
	h := l.hosts[0]
	h.conns[0] = nil
	h.conns = h.conns[1:]
	l.hosts = append(slices.Delete(l.hosts, 0, 1), h)
	l.dropEmpty(h)
}

// left notes that c, which waits, was closed. It returns the work of forgetting such when there are many.
func (l *line) left(c *Conn) (work int) {
	h := l.byName[hostOf(c.Peer)]
	if h.gone++; h.gone <= len(h.conns)/2 {
		return 0
	}
	work = len(h.conns)
	h.conns = slices.DeleteFunc(h.conns, func(c *Conn) bool { return c.closed })
	h.gone = 0
	l.dropEmpty(h)
	return work
}

func (l *line) dropEmpty(h *waitingHost) {
	if len(h.conns) > 0 {
		return
	}
	delete(l.byName, h.name)
	at := slices.Index(l.hosts, h)
	l.hosts = slices.Delete(l.hosts, at, at+1)
}
