// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"cmp"
	"slices"

	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// Snapshot is the machine's state in numbers.
type Snapshot struct {
	Conns   [wire.DialectCount]int // open connections
	Opened  uint64                 // connections ever
	Cuts    uint64                 // connections ended for a reason
	Ops     [wire.OpLimit]uint64
	Keys    int
	Queues  int
	Memory  int64 // what counts against the limit
	Data    int64 // of it keys and values
	NWaits  int
	Left    int      // keys that clients of an earlier run left behind
	LeftAt  int64    // when the last of them went, as told by Tick
	Waiters []Waiter // the oldest first, at most as many as asked for
}

// Waiter is a client that waits for a key.
type Waiter struct {
	Key, Peer string
	Name      string // who the peer says it is, see claim
	Barrier   bool
	Since     int64 // as told by Tick
}

// Snapshot returns the state in numbers, with at most maxWaiters waiters.
func (m *Machine) Snapshot(maxWaiters int) Snapshot {
	s := Snapshot{
		Conns: m.conns, Opened: m.opened, Cuts: m.cuts, Ops: m.ops, Keys: m.table.count, Queues: len(m.queues),
		Memory: m.memory(), Data: m.table.bytes, NWaits: m.waits, Left: m.left, LeftAt: m.leftAt,
	}
	for _, lists := range []map[string]*waitList{m.waiting, m.barriers} {
		for key, l := range lists {
			for n := l.head; n != nil; n = n.next {
				s.Waiters = append(s.Waiters, Waiter{Key: key, Peer: n.wait.conn.Peer, Name: m.name(n.wait.conn), Since: n.wait.since, Barrier: n.wait.kind == waitBarrier})
				if len(s.Waiters) >= 2*maxWaiters+64 { // there may be a million
					s.Waiters = oldest(s.Waiters, maxWaiters)
				}
			}
		}
	}
	s.Waiters = oldest(s.Waiters, maxWaiters)
	return s
}

// oldest sorts by age and keeps the first n.
func oldest(list []Waiter, n int) []Waiter {
	slices.SortFunc(list, func(a, b Waiter) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Peer, b.Peer))
	})
	return list[:min(n, len(list))]
}
