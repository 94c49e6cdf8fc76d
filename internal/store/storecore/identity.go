// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// Identity names a key space: another server has another one, and so has the same server after Clear.
type Identity [wire.IdentitySize]byte

// mask turns an identity as it stands in a log into that which clients see, and back.
func (id Identity) mask(other Identity) (masked Identity) {
	for i := range id {
		masked[i] = id[i] ^ other[i]
	}
	return masked
}

// Identity returns the store's present identity.
func (m *Machine) Identity() Identity { return m.run.identity }

// A run is what happens between the first client that uses an empty house and the last one that leaves it. Connections
// that only look (ping, statistics, hello) are no users.

// run is what is known of the present run and of the one before it.
type run struct {
	identity Identity
	users    int   // connections that have used the store
	left     int   // keys that the last run left behind
	leftAt   int64 // when it ended
}

// standing is what one connection is to the store.
type standing struct {
	greeted bool // VALIDATE was seen
	user    bool // it has used the store
	knows   bool // it has got the identity
	stale   bool // the store it knows is gone
}

// neutral reports whether a request leaves its client a mere visitor.
func neutral(r *wire.Request) bool {
	switch r.Op {
	case wire.Validate, wire.Ping, wire.Upgrade, wire.Hello, wire.Stats, wire.Clear, wire.Backup, wire.Session, wire.Leave, wire.Acked:
		return true
	case wire.Check:
		list := r.List
		if list.Count != 1 {
			return false
		}
		key := list.Next()
		return string(key) == wire.NativeKey || string(key) == wire.SessionsKey
	default:
		return false
	}
}

// use notes that c uses the store, if it does.
func (m *Machine) use(c *Conn, r *wire.Request) {
	if !neutral(r) {
		c.standing.user = true
		m.run.users++
	}
}

// leave notes that a user is gone. The last one ends the run.
func (m *Machine) leave(c *Conn) {
	if !c.standing.user {
		return
	}
	c.standing.user = false
	if m.run.users--; m.run.users > 0 {
		return
	}
	m.run.left, m.run.leftAt = m.keys(), m.clock.now
	switch {
	case !m.config.Forget:
	case m.log != nil:
		m.proposeForget()
	default:
		m.empty(nil)
	}
}

// keys counts what the store holds: keys, and queues with items.
func (m *Machine) keys() int { return m.table.Len() + len(m.queues.byKey) }

// hello sends a native client the identity of the store.
func (m *Machine) hello(c *Conn, r *wire.Request) error {
	if len(r.Expected) != 0 && !bytes.Equal(r.Expected, m.run.identity[:]) {
		m.expel(c)
		return replaced()
	}
	c.standing.knows, c.standing.stale = true, false
	m.replyIdentity(c, r.ID, m.run.left)
	return nil
}

// isIdentity reports whether a key asks for the identity that the store has, or whether it can be asked for it: clients
// of all dialects can.
func (m *Machine) isIdentity(question []byte) bool {
	id, asks := bytes.CutPrefix(question, []byte(wire.IdentityPrefix))
	return asks && (len(id) == 0 || bytes.Equal(id, m.run.identity[:]))
}

// asksIdentity reports whether a key is a question for the identity.
func (m *Machine) asksIdentity(question []byte) bool {
	return bytes.HasPrefix(question, []byte(wire.IdentityPrefix))
}

func (m *Machine) replyIdentity(c *Conn, id uint32, keys int) {
	start := m.begin(c, id)
	c.out.Buf = wire.AppendInt(wire.AppendBytes(c.out.Buf, m.run.identity[:]), int64(keys))
	m.end(c, start)
}

func replaced() error {
	return cohort.New("tcpstore: serve", cohort.Replaced,
		"this is another store: the server was restarted or its keys were cleared, and what this client stored or read before is gone")
}

// clear is CLEAR: the client that asks goes on with the new store.
func (m *Machine) clear(c *Conn, r *wire.Request) error {
	if !bytes.Equal(r.Expected, m.run.identity[:]) {
		return notThisStore()
	}
	m.replyIdentity(c, r.ID, m.empty(c))
	return nil
}

// Clear forgets all keys, queues, claims and waits, draws a new identity, and returns the number of keys that there were.
// Native clients get the error from now on that this is another store; users of the other dialects are cut.
func (m *Machine) Clear() int { return m.empty(nil) }

// empty turns the machine into another store. Only the connection by, if any, may go on in it, with its session.
func (m *Machine) empty(by *Conn) int {
	if by == nil {
		return m.emptyFor(nil, nil)
	}
	return m.emptyFor(by, by.session)
}

// emptyFor is empty where the session may go on whose connection is perhaps elsewhere.
func (m *Machine) emptyFor(by *Conn, session *session) int {
	keys := m.keys()
	m.dropSessions(session)
	for _, c := range slices.Clone(m.conns.all) {
		switch {
		case c.closed: // cut a moment ago
		case c.dialect == wire.Native:
			if c != by && (c.standing.user || c.standing.knows) {
				m.expel(c)
			}
			for p := c.holdings.waits.First(); p != nil; p = c.holdings.waits.First() {
				m.forget(p.Of())
				m.refuseRequest(c, p.Of().id, replaced())
			}
			m.dropStale(c, c == by)
			m.leaveClaims(c)
		case c.standing.user:
			m.Refuse(c, replaced())
		}
	}
	m.forgetAll()
	return keys
}

// expel keeps a native client out of a store that is not the one it knows, until it says hello to the new one. It may
// still look.
func (m *Machine) expel(c *Conn) {
	c.standing.stale = true
	m.expelled(c)
}

// expelled notes that c does not use the store any more, or not yet.
func (m *Machine) expelled(c *Conn) {
	if c.standing.user {
		c.standing.user = false
		m.run.users--
	}
}

// forgetAll replaces the key space. No wait or watch is left when it is called: they end with their users.
func (m *Machine) forgetAll() {
	m.table, m.claims = keytable.New(), claims{holders: m.claims.holders}
	clear(m.queues.byKey)
	m.queues.bytes, m.admission.waits = 0, 0
	m.run.identity = m.config.Identity()
	m.run.left = 0
}
