// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// watchCost is what a watch takes beside its key.
const watchCost = 128

// watch registers a legacy client for callbacks about a key.
func (m *Machine) watch(c *Conn, r *wire.Request) error {
	if _, has := c.stakes.watches[string(r.Key)]; has {
		m.replyByte(c, r.ID, wire.Watching)
		return nil
	}
	if len(c.stakes.watches) >= m.config.Limits.Waits {
		return dist.Newf("tcpstore: serve", dist.Exhausted, "%d watches of one client, the limit is %d", len(c.stakes.watches), m.config.Limits.Waits)
	}
	cost := int64(2*len(r.Key) + watchCost)
	if err := m.roomToWait(c, cost); err != nil {
		return err
	}
	key := string(r.Key)
	if c.stakes.watches == nil {
		c.stakes.watches = map[string]struct{}{}
	}
	if m.watchers[key] == nil {
		m.watchers[key] = map[*Conn]struct{}{}
	}
	c.stakes.watches[key], m.watchers[key][c] = struct{}{}, struct{}{}
	m.stake(c, cost)
	m.replyByte(c, r.ID, wire.Watching)
	return nil
}

func (m *Machine) unwatch(c *Conn) {
	for key := range c.stakes.watches {
		delete(m.watchers[key], c)
		if len(m.watchers[key]) == 0 {
			delete(m.watchers, key)
		}
		m.stake(c, -int64(2*len(key)+watchCost))
	}
	c.stakes.watches = nil
}

// watched is how many watch a key.
func (m *Machine) watched(key []byte) int {
	if len(m.watchers) == 0 {
		return 0
	}
	return len(m.watchers[string(key)])
}

// mayNotify returns an error when a request that may change keys has so many watchers to tell that it has to wait for the next turn.
func (m *Machine) mayNotify(r *wire.Request) error {
	if len(m.watchers) == 0 || !changes(r.Op) && r.Op != wire.Add {
		return nil
	}
	n := 0
	if r.Op == wire.MultiSet {
		for list := r.List; !list.Empty(); list.Next() {
			m.turn.work++
			n += m.watched(list.Next())
		}
	} else {
		n = m.watched(r.Key)
	}
	return m.turn.mayCopy(n * answerWork * unitBytes)
}

// before returns a copy of a value that is about to change, for those who watch its key.
func (m *Machine) before(e *entry) []byte {
	if m.watched(e.key()) == 0 {
		return nil
	}
	m.turn.copied(len(e.value()))
	return bytes.Clone(e.value())
}

// notify tells watchers of a change. What they are told is not asked for, so nobody can wait for room: a watcher that has
// not read what it was told before gives way. All of them are told by the same bytes, and each is counted as one that waited: requests
// that many have to be told of share a turn as other large ones do, see mayNotify.
func (m *Machine) notify(kind byte, key, old, value []byte) {
	if m.watched(key) == 0 {
		return
	}
	size := 25 + len(key) + len(old) + len(value)
	event := wire.AppendWatchEvent(make([]byte, 0, size), wire.WatchEvent{Kind: kind, Key: key, Old: old, New: value})
	m.turn.copied(size)
	for c := range m.watchers[string(key)] {
		m.turn.work += answerWork
		if c.closed {
			continue // it was cut for another's callback
		}
		others := m.budget.out - int64(c.out.counted)
		if owed := c.Owed(); owed > 0 && m.fitsBeside(others, owed+size) != nil {
			m.Refuse(c, dist.Newf("tcpstore: serve", dist.Exhausted,
				"the client does not read its callbacks: %d bytes wait for it, and %d more have no room", owed, size))
			continue
		}
		m.enforce(size)
		if c.closed {
			continue
		}
		start := m.begin(c, 0)
		if size > sharedSize {
			c.out.refer(event, event)
		} else {
			c.out.buf = append(c.out.buf, event...)
		}
		m.end(c, start)
	}
}
