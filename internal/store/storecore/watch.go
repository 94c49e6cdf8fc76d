// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"maps"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/keytable"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// watchCost is what a watch takes beside its key, and what a callback that is kept takes beside its bytes.
const watchCost = 128

// watch registers a legacy client for callbacks about a key.
func (m *Machine) watch(c *Conn, r *wire.Request) error {
	if _, has := c.holdings.watches[string(r.Key)]; has {
		m.replyByte(c, r.ID, wire.Watching)
		return nil
	}
	if len(c.holdings.watches) >= m.config.Limits.Waits {
		return cohort.Newf("tcpstore: serve", cohort.Exhausted, "%d watches of one client, the limit is %d",
			len(c.holdings.watches), m.config.Limits.Waits)
	}
	cost := int64(2*len(r.Key) + watchCost)
	if err := m.roomToWait(c, cost); err != nil {
		return err
	}
	key := string(r.Key)
	if c.holdings.watches == nil {
		c.holdings.watches = map[string]struct{}{}
	}
	if m.watchers[key] == nil {
		m.watchers[key] = map[*Conn]struct{}{}
	}
	c.holdings.watches[key], m.watchers[key][c] = struct{}{}, struct{}{}
	m.chargeHoldings(c, cost)
	m.replyByte(c, r.ID, wire.Watching)
	return nil
}

func (m *Machine) unwatch(c *Conn) {
	for key := range c.holdings.watches {
		delete(m.watchers[key], c)
		if len(m.watchers[key]) == 0 {
			delete(m.watchers, key)
		}
		m.chargeHoldings(c, -int64(2*len(key)+watchCost))
	}
	c.holdings.watches = nil
}

// watched is how many watch a key.
func (m *Machine) watched(key []byte) int {
	if len(m.watchers) == 0 {
		return 0
	}
	return len(m.watchers[string(key)])
}

// mayNotify returns an error when a request that may change keys, or begins to watch one, has to wait for the next turn: it has so many
// watchers to notify, or those of an earlier change have not all been notified.
func (m *Machine) mayNotify(r *wire.Request) error {
	if !m.operations[r.Op].changes && r.Op != wire.Add && r.Op != wire.WatchKey {
		return nil
	}
	n := 0
	switch r.Op {
	case wire.WatchKey:
	case wire.MultiSet:
		for list := r.List; !list.Empty(); list.Next() {
			m.turn.work++
			n += m.watched(list.Next())
		}
	default:
		n = m.watched(r.Key)
	}
	if len(m.keyChanges) > 0 && (n > 0 || r.Op == wire.WatchKey) {
		return laterError{}
	}
	m.turn.notifyEnd = m.turn.work + heavyWork
	return m.turn.mayCopy(n * answerWork * unitBytes)
}

// before returns a copy of a value that is about to change, for those who watch its key.
func (m *Machine) before(e *keytable.Entry) []byte {
	if m.watched(e.Key()) == 0 {
		return nil
	}
	m.turn.copied(len(e.Value()))
	return bytes.Clone(e.Value())
}

// keyChange is a change that those who watch its key are notified of, by the same bytes. Until all of them have been
// notified, no key that is watched changes and no client begins to watch one. So each is notified of all changes in
// their order, and of none from before it watched.
type keyChange struct {
	key   string
	event []byte
	begun bool
	to    []*Conn // once it has begun: those who have not been notified
}

// cost is what a change takes of the memory until all have been notified: those who have been may have read it, or left.
func (t *keyChange) cost() int64 { return int64(len(t.key) + len(t.event) + watchCost) }

// notify notifies watchers of a change, as many as the turn allows, and the others in the next turns.
func (m *Machine) notify(kind byte, key, old, value []byte) {
	if m.watched(key) == 0 {
		return
	}
	size := 25 + len(key) + len(old) + len(value)
	m.enforce(size)
	event := wire.AppendWatchEvent(make([]byte, 0, size), wire.WatchEvent{Kind: kind, Key: key, Old: old, New: value})
	m.turn.copied(size)
	news := keyChange{key: string(key), event: event}
	m.keyChanges = append(m.keyChanges, news)
	m.admission.unsent += news.cost()
	m.notifyUntil(m.turn.notifyEnd)
	for len(m.keyChanges) > 1 && m.admission.unsent > m.admission.shares.out { // not all can be kept
		m.notifyUntil(m.turn.work + heavyWork)
	}
}

// notifyUntil notifies watchers up to an amount of work. Each is counted as one that waited.
func (m *Machine) notifyUntil(end uint64) {
	for ; len(m.keyChanges) > 0; m.keyChanges = m.keyChanges[1:] {
		t := &m.keyChanges[0]
		if !t.begun && m.turn.work < end {
			t.begun, t.to = true, slices.Collect(maps.Keys(m.watchers[t.key]))
		}
		for ; len(t.to) > 0 && m.turn.work < end; t.to = t.to[1:] {
			m.turn.work += answerWork
			m.callBack(t.to[0], t.event)
		}
		if !t.begun || len(t.to) > 0 {
			return
		}
		m.admission.unsent -= t.cost()
		*t = keyChange{}
	}
	m.keyChanges = nil
}

// callBack sends a watcher a callback. It is not a reply to a request that could wait for room: a watcher that has not
// read what it was sent before gives way.
func (m *Machine) callBack(c *Conn, event []byte) {
	if c.closed {
		return // it was cut for another's callback, or has left
	}
	others, size := m.admission.out-int64(c.out.counted), len(event)
	if owed := c.Owed(); owed > 0 && m.fitsBeside(others, owed+size) != nil {
		m.Refuse(c, cohort.Newf("tcpstore: serve", cohort.Exhausted,
			"the client does not read its callbacks: %d bytes wait for it, and %d more have no room", owed, size))
		return
	}
	if m.enforce(size); c.closed {
		return
	}
	start := m.begin(c, 0)
	if size > sharedSize {
		c.out.Refer(event, event)
	} else {
		c.out.Buf = append(c.out.Buf, event...)
	}
	m.end(c, start)
}
