// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"container/list"
	"strings"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// A client says something as soon as it has connected. Only those of PyTorch 1.13 have a second connection each that may say nothing for as
// long as they live. So an address may have as many silent connections as others, and of those beyond that the machine keeps a bounded
// number: connections alone cannot take all descriptors from the clients.

// silentConns are the connections of which it is not known what they speak.
type silentConns struct {
	byHost map[string]*hostConns
	beyond int // silent ones beyond the others of their address, of all addresses
}

// hostConns are the connections of an address.
type hostConns struct {
	silent *list.List // of *Conn, the oldest first
	others int
}

func (h *hostConns) beyond() int { return max(0, h.silent.Len()-h.others) }

// change changes the connections of an address.
func (s *silentConns) change(c *Conn, f func(*hostConns)) {
	name := c.Peer
	if i := strings.LastIndexByte(name, ':'); i >= 0 { // the port
		name = name[:i]
	}
	h := s.byHost[name]
	if h == nil {
		h = &hostConns{silent: list.New()}
		s.byHost[name] = h
	}
	s.beyond -= h.beyond()
	f(h)
	s.beyond += h.beyond()
	if h.others == 0 && h.silent.Len() == 0 {
		delete(s.byHost, name)
	}
}

// opened takes a new connection.
func (s *silentConns) opened(c *Conn) {
	s.change(c, func(h *hostConns) { c.silent = h.silent.PushBack(c) })
}

// spoke says that a connection is not silent any more.
func (s *silentConns) spoke(c *Conn) {
	s.change(c, func(h *hostConns) {
		h.silent.Remove(c.silent)
		h.others++
	})
	c.silent = nil
}

// closed forgets a connection.
func (s *silentConns) closed(c *Conn) {
	s.change(c, func(h *hostConns) {
		if c.silent == nil {
			h.others--
			return
		}
		h.silent.Remove(c.silent)
	})
	c.silent = nil
}

// oldest returns the oldest silent connection of the address that has most beyond its others, nil if none has any.
func (s *silentConns) oldest() *Conn {
	var most *hostConns
	for _, h := range s.byHost {
		if n := h.beyond(); n > 0 && (most == nil || n > most.beyond()) {
			most = h
		}
	}
	if most == nil {
		return nil
	}
	return most.silent.Front().Value.(*Conn) //nolint:errcheck // all of them are
}

// DropSilent ends a connection that has sent nothing, for a lack of room for others. It reports false if there is none that may be ended.
func (m *Machine) DropSilent() bool {
	c := m.silent.oldest()
	if c != nil {
		m.Refuse(c, cohort.New("tcpstore: serve", cohort.Exhausted,
			"the client has sent nothing since it connected, and too many such connections are open"))
	}
	return c != nil
}

// limitSilent ends silent connections that are too many.
func (m *Machine) limitSilent() {
	for m.config.Silent > 0 && m.silent.beyond > m.config.Silent && m.DropSilent() {
	}
}

// speak notes what a client speaks.
func (m *Machine) speak(c *Conn, d wire.Dialect) {
	if c.dialect == wire.Undetected {
		m.silent.spoke(c)
	}
	m.counts.conns[c.dialect]--
	m.counts.conns[d]++
	c.dialect = d
}
