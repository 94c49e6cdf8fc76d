// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"cmp"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// counts is what the machine counts for people to look at.
type counts struct {
	opened uint64                 // connections ever
	cuts   uint64                 // connections ended for a reason
	conns  [wire.DialectCount]int // open ones
	ops    [wire.OpLimit]uint64
}

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
	Work    uint64     // see Machine.Work
	Workers int64      // processes that joined, as PyTorch counts them
	Left    int        // keys that clients of an earlier run left behind
	LeftAt  int64      // when the last of them left, as given to Tick
	Waiters []waitInfo // the oldest first, at most as many as asked for
	Pollers []poller
}

// waitInfo is a client that waits for a key.
type waitInfo struct {
	Key     string // of a very long one the beginning
	Peer    string
	Name    string // who the peer says it is, see claim
	Barrier bool
	Since   int64 // as given to Tick
}

// poller is a client that asks for a key again and again.
type poller struct {
	pollHint
	Peer, Name string
}

const (
	// mostPollers bounds the pollers of a Snapshot.
	mostPollers = 256
	// lookedAt bounds the keys, and the connections, that a Snapshot looks at, for each waiter that it may return.
	lookedAt = 16
	// shownKey is how much of a key is shown, and shownText how many bytes all waiters of a Snapshot have together, and all
	// claims; pollers have a quarter of it. That is enough for as many of the usual kind as there may be.
	shownKey  = 512
	shownText = 128 << 10
	// statsWork is counted for an answer to STATS before it is made. It is more than a Snapshot of a thousand waiters and the
	// text that is made of it take, with six bytes for each that cannot be printed.
	statsWork = heavyWork
)

// stats answers STATS. Within one turn the answer is made once, however many ask for it.
func (m *Machine) stats(c *Conn, r *wire.Request) error {
	if m.config.Stats == nil {
		return cohort.New("tcpstore: serve", cohort.NotSupported, "this server keeps no statistics")
	}
	if m.turn.stats == nil {
		if err := m.turn.mayCopy(statsWork * unitBytes); err != nil {
			return err
		}
		m.turn.stats = m.config.Stats()
		m.turn.copied(len(m.turn.stats))
	}
	text := m.turn.stats
	if err := m.mayReply(len(text), 0); err != nil {
		return err
	}
	start := m.begin(c, r.ID)
	c.out.Refer(text, text)
	m.end(c, start)
	return nil
}

// Snapshot returns the state in numbers, with at most maxWaiters waiters. What it costs does not depend on how many wait, nor on
// how long their keys are.
func (m *Machine) Snapshot(maxWaiters int) Snapshot {
	s := Snapshot{
		Conns: m.counts.conns, Opened: m.counts.opened, Cuts: m.counts.cuts, Ops: m.counts.ops, Keys: m.table.Len(),
		Queues: len(m.queues.byKey),
		Memory: m.memory(), Data: m.table.Bytes(), NWaits: m.waits.n, Left: m.run.left, LeftAt: m.run.leftAt, Work: m.turn.work,
	}
	if e := m.table.Find([]byte(wire.WorkerCountKey)); e != nil {
		s.Workers, _ = storeop.ParseCounter(e.Value())
	}
	looks, text := lookedAt*maxWaiters, shownText
	add := func(w waitInfo, c *Conn, key string) {
		w.Peer, w.Name = c.Peer, m.name(c)
		if w.Key = key; len(key) > shownKey {
			w.Key = key[:shownKey] + "..."
		}
		if text -= len(w.Key) + len(w.Peer) + len(w.Name); text < 0 {
			looks = 0
			return
		}
		s.Waiters = append(s.Waiters, w)
	}
	for p := m.waits.all.First(); p != nil && len(s.Waiters) < maxWaiters && looks > 0; p = p.Next() {
		w := p.Of()
		waiter := waitInfo{Since: w.since}
		looks--
		if w.barrier != nil {
			waiter.Barrier = true
			add(waiter, w.conn, w.barrier.key)
			continue
		}
		for i := range w.nodes {
			n := &w.nodes[i]
			if looks--; looks <= 0 || len(s.Waiters) >= maxWaiters {
				break
			}
			if n.key != nil && (w.kind == waitPop || !m.satisfies(w.kind, []byte(n.key.key))) {
				add(waiter, w.conn, n.key.key)
			}
		}
	}
	s.Pollers = m.pollers(maxWaiters)
	m.turn.work += uint64(lookedAt*maxWaiters - max(looks, 0)) //nolint:gosec // not negative
	slices.SortFunc(s.Waiters, func(a, b waitInfo) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Peer, b.Peer))
	})
	return s
}

// pollers returns clients that ask again and again, at most as many as asked for and as have room in a Snapshot.
func (m *Machine) pollers(most int) (all []poller) {
	text := shownText / 4
	for _, c := range m.conns.all[:min(len(m.conns.all), lookedAt*most)] {
		m.turn.work++
		hint, found := c.poll.GoesOn(m.clock.now)
		if !found {
			continue
		}
		p := poller{hint, c.Peer, m.name(c)}
		if text -= len(p.Key) + len(p.Answer) + len(p.Peer) + len(p.Name); text < 0 || len(all) >= min(most, mostPollers) {
			break
		}
		all = append(all, p)
	}
	return all
}
