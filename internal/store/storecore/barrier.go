// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import wire "github.com/cohort-dist/cohort/internal/store/storewire"

// barrier holds who waits at a barrier: a heap with the smallest wanted size on top, so that an arrival looks at those it
// lets go and at one more.
type barrier struct {
	key   string
	waits []*wait
}

// arrive counts a member in and lets all go once enough have come.
func (m *Machine) arrive(c *Conn, r *wire.Request) error { return m.arriveBy(c, r, 1) }

// arriveSeveral is arrive for several members behind one connection.
func (m *Machine) arriveSeveral(c *Conn, r *wire.Request) error {
	return m.arriveBy(c, r, int64(r.Nonce))
}

func (m *Machine) arriveBy(c *Conn, r *wire.Request, count int64) error {
	n, err := m.increase(r.Key, count)
	if err != nil {
		return err
	}
	if len(m.sessions.barriers) > 0 {
		m.sessions.reach(r.Key, n.sum)
	}
	m.added(r.Key, n)
	if n.sum >= r.Num {
		m.replyByte(c, r.ID, wire.StopWaiting)
	} else if err = m.open(c, r, waitBarrier); err != nil {
		return err
	}
	if b := m.waits.barriers[string(r.Key)]; b != nil {
		for len(b.waits) > 0 && b.waits[0].size <= n.sum {
			w := b.waits[0]
			m.leaveBarrier(w)
			m.makeReady(w)
		}
		m.wake()
	}
	return nil
}

func (m *Machine) joinBarrier(w *wait, key []byte) {
	b := m.waits.barriers[string(key)]
	if b == nil {
		b = &barrier{key: string(key)}
		m.waits.barriers[b.key] = b
	}
	w.barrier, w.place = b, len(b.waits)
	b.waits = append(b.waits, w)
	m.rise(b, w.place)
}

func (m *Machine) leaveBarrier(w *wait) {
	b, at := w.barrier, w.place
	w.barrier = nil
	last := len(b.waits) - 1
	moved := b.waits[last]
	b.waits[last] = nil
	b.waits = b.waits[:last]
	if last == 0 {
		delete(m.waits.barriers, b.key)
	}
	if at == last {
		return
	}
	b.put(moved, at)
	m.rise(b, at)
	m.sink(b, moved.place)
}

func (b *barrier) put(w *wait, at int) { b.waits[at], w.place = w, at }

// rise moves the wait at a place up to where it belongs.
func (m *Machine) rise(b *barrier, at int) {
	for at > 0 {
		m.turn.work++
		up := (at - 1) / 2
		w, above := b.waits[at], b.waits[up]
		if above.size <= w.size {
			return
		}
		b.put(w, up)
		b.put(above, at)
		at = up
	}
}

// sink moves the wait at a place down to where it belongs.
func (m *Machine) sink(b *barrier, at int) {
	for {
		m.turn.work++
		least := at
		for _, below := range []int{2*at + 1, 2*at + 2} {
			if below < len(b.waits) && b.waits[below].size < b.waits[least].size {
				least = below
			}
		}
		if least == at {
			return
		}
		w, below := b.waits[at], b.waits[least]
		b.put(w, least)
		b.put(below, at)
		at = least
	}
}
