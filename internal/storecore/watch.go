// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// watch registers a legacy client for callbacks about a key.
func (m *Machine) watch(c *Conn, r *wire.Request) error {
	if len(c.watches) >= m.limits.Waits {
		return dist.Newf("tcpstore: serve", dist.Exhausted, "%d watches of one client, the limit is %d", len(c.watches), m.limits.Waits)
	}
	if err := m.room(2*len(r.Key) + 2*itemCost); err != nil {
		return err
	}
	if list := m.watchers[string(r.Key)]; !slices.Contains(list, c) {
		key := string(r.Key)
		m.watchers[key] = append(list, c)
		c.watches = append(c.watches, key)
		m.extraBytes += int64(2*len(key) + 2*itemCost)
	}
	m.replyByte(c, r.ID, wire.Watching)
	return nil
}

func (m *Machine) unwatch(c *Conn) {
	for _, key := range c.watches {
		list := m.watchers[key]
		if i := slices.Index(list, c); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
		if len(list) == 0 {
			delete(m.watchers, key)
		} else {
			m.watchers[key] = list
		}
		m.extraBytes -= int64(2*len(key) + 2*itemCost)
	}
	c.watches = nil
}

// notify tells watchers of a change.
func (m *Machine) notify(kind byte, key, old, value []byte) {
	if len(m.watchers) == 0 {
		return
	}
	// A watcher that is cut for not reading leaves the list while it is being walked.
	for _, c := range slices.Clone(m.watchers[string(key)]) {
		if c.closed {
			continue
		}
		start := len(c.out)
		c.out = wire.AppendWatchEvent(c.out, wire.WatchEvent{Kind: kind, Key: key, Old: old, New: value})
		m.end(c, start)
	}
}
