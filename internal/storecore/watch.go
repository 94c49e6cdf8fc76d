// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
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

// notify tells watchers of a change. What they are told is not asked for, so nobody can wait for room: a watcher that has
// not read what it was told before gives way. All of them are told by the same bytes, and each is counted as one that waited: who
// changes a key that many watch does not do so a thousand times in a turn.
func (m *Machine) notify(kind byte, key, old, value []byte) {
	if len(m.watchers) == 0 || len(m.watchers[string(key)]) == 0 {
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
