// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"slices"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// Identity names a key space: another server has another one, and so has the same server after Clear.
type Identity [wire.IdentitySize]byte

// Identity returns the store's present identity.
func (m *Machine) Identity() Identity { return m.identity }

// A run is what happens between the first client that uses an empty house and the last one that leaves it. Connections
// that only look (ping, statistics, hello) are no users.

// neutral reports whether a request leaves its client a mere visitor.
func neutral(r *wire.Request) bool {
	switch r.Op {
	case wire.Validate, wire.Ping, wire.Upgrade, wire.Hello, wire.Stats, wire.Clear:
		return true
	case wire.Check:
		list := r.List
		return list.Count == 1 && string(list.Next()) == wire.NativeKey
	default:
		return false
	}
}

// use notes that c uses the store, if it does.
func (m *Machine) use(c *Conn, r *wire.Request) {
	if !neutral(r) {
		c.user = true
		m.users++
	}
}

// leave notes that a user is gone. The last one ends the run.
func (m *Machine) leave(c *Conn) {
	if !c.user {
		return
	}
	c.user = false
	if m.users--; m.users > 0 {
		return
	}
	m.left, m.leftAt = m.keys(), m.now
	if m.config.Forget {
		m.empty(nil)
	}
}

// keys counts what the store holds: keys, and queues with items.
func (m *Machine) keys() int { return m.table.count + len(m.queues) }

// hello tells a native client which store this is.
func (m *Machine) hello(c *Conn, r *wire.Request) error {
	if len(r.Expected) != 0 && !bytes.Equal(r.Expected, m.identity[:]) {
		m.expel(c)
		return replaced()
	}
	c.knows, c.stale = true, false
	m.replyIdentity(c, r.ID, m.left)
	return nil
}

func (m *Machine) replyIdentity(c *Conn, id uint32, keys int) {
	start := m.begin(c, id)
	c.out = wire.AppendInt(wire.AppendBytes(c.out, m.identity[:]), int64(keys))
	m.end(c, start)
}

func replaced() error {
	return dist.New("tcpstore: serve", dist.Replaced,
		"this is another store: the server was restarted or its keys were cleared, and what this client stored or read before is gone")
}

// clear is CLEAR: whoever asks goes on with the new store.
func (m *Machine) clear(c *Conn, r *wire.Request) error {
	if !bytes.Equal(r.Expected, m.identity[:]) {
		return dist.New("tcpstore: clear", dist.InvalidArgument, "the identity is not that of this store: ask for it with hello")
	}
	m.replyIdentity(c, r.ID, m.empty(c))
	return nil
}

// Clear forgets all keys, queues, claims and waits, draws a new identity, and returns the number of keys that there were.
// Native clients are told from now on that this is another store; users of the other dialects are cut.
func (m *Machine) Clear() int { return m.empty(nil) }

// empty turns the machine into another store. Only the connection by, if any, may go on in it.
func (m *Machine) empty(by *Conn) int {
	keys := m.keys()
	for _, c := range slices.Clone(m.all) {
		switch {
		case c.closed: // cut a moment ago
		case c.dialect == wire.Native:
			if c != by && (c.user || c.knows) {
				m.expel(c)
			}
			for p := c.waits.First(); p != nil; p = c.waits.First() {
				m.forget(p.Of())
				m.refuseRequest(c, p.Of().id, replaced())
			}
			m.unclaim(c)
		case c.user:
			m.Refuse(c, replaced())
		}
	}
	m.forgetAll()
	return keys
}

// expel keeps a native client out of a store that is not the one it knows, until it says hello to the new one. It may
// still look.
func (m *Machine) expel(c *Conn) {
	c.stale = true
	if c.user {
		c.user = false
		m.users--
	}
}

// forgetAll replaces the key space. No wait, watch or held claim is left when it is called: they end with their users.
func (m *Machine) forgetAll() {
	m.table, m.claims = newTable(), claims{}
	clear(m.queues)
	m.queueBytes, m.waitBytes = 0, 0
	m.identity = m.config.Identity()
	m.left = 0
}
