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
	Work    uint64   // see Machine.Work
	Workers int64    // processes that joined, as PyTorch counts them
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

// lookedAt bounds the keys that a Snapshot looks at, for each waiter that it may return.
const lookedAt = 16

// Snapshot returns the state in numbers, with at most maxWaiters waiters. What it costs does not depend on how many wait.
func (m *Machine) Snapshot(maxWaiters int) Snapshot {
	s := Snapshot{
		Conns: m.conns, Opened: m.opened, Cuts: m.cuts, Ops: m.ops, Keys: m.table.count, Queues: len(m.queues),
		Memory: m.memory(), Data: m.table.bytes, NWaits: m.waits, Left: m.left, LeftAt: m.leftAt, Work: m.work,
	}
	if e := m.table.find([]byte(wire.WorkerCountKey)); e != nil {
		s.Workers, _ = parseNumber(e.value())
	}
	looks := lookedAt * maxWaiters
	for p := m.allWaits.First(); p != nil && len(s.Waiters) < maxWaiters && looks > 0; p = p.Next() {
		w := p.Of()
		waiter := Waiter{Peer: w.conn.Peer, Name: m.name(w.conn), Since: w.since}
		looks--
		if w.barrier != nil {
			waiter.Key, waiter.Barrier = w.barrier.key, true
			s.Waiters = append(s.Waiters, waiter)
			continue
		}
		for i := range w.nodes {
			n := &w.nodes[i]
			if looks--; looks <= 0 || len(s.Waiters) >= maxWaiters {
				break
			}
			if n.key != nil && (w.kind == waitPop || !m.satisfies(w.kind, []byte(n.key.key))) {
				waiter.Key = n.key.key
				s.Waiters = append(s.Waiters, waiter)
			}
		}
	}
	m.work += uint64(lookedAt*maxWaiters - looks) //nolint:gosec // not negative
	slices.SortFunc(s.Waiters, func(a, b Waiter) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Peer, b.Peer))
	})
	return s
}
