// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"

	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// queue holds items in the order they came. An empty queue does not exist.
type queue struct {
	items [][]byte
	first int
}

// itemCost is what an item or a watch takes beside its bytes.
const itemCost = 48

func (q *queue) len() int { return len(q.items) - q.first }

func (q *queue) take() []byte {
	item := q.items[q.first]
	q.items[q.first] = nil
	q.first++
	if q.first > 32 && q.first > len(q.items)/2 {
		q.items = q.items[:copy(q.items, q.items[q.first:])]
		q.first = 0
	}
	return item
}

// push adds an item, or hands it to the first who waits for one.
func (m *Machine) push(c *Conn, r *wire.Request) error {
	if err := reserved(r.Key); err != nil {
		return err
	}
	if err := m.room(len(r.Key) + len(r.Value) + 2*itemCost); err != nil {
		return err
	}
	if !m.handOver(r.Key, r.Value) {
		q := m.queues[string(r.Key)]
		if q == nil {
			q = &queue{}
			m.queues[string(r.Key)] = q
			m.extraBytes += int64(len(r.Key)) + itemCost
		}
		q.items = append(q.items, bytes.Clone(r.Value))
		m.extraBytes += int64(len(r.Value)) + itemCost
		m.wakeQueue(r.Key)
	}
	m.ack(c, r.ID)
	return nil
}

// handOver gives an item to the oldest pop that waits. Only native clients have pops that wait, and while one does, the
// queue is empty. A WAIT does not come into it: its client may want to pop or may not, and a queue that holds an item
// while a pop waits for one would be wrong.
func (m *Machine) handOver(key, item []byte) bool {
	if len(m.waiting) == 0 {
		return false
	}
	l := m.waiting[string(key)]
	if l == nil || l.pops == 0 {
		return false
	}
	for n := l.head; n != nil; n = n.next {
		if w := n.wait; w.kind == waitPop {
			m.forget(w)
			start := m.begin(w.conn, w.id)
			w.conn.out = wire.AppendBytes(wire.AppendInt(w.conn.out, 1), item)
			m.end(w.conn, start)
			return true
		}
	}
	return false
}

// wakeQueue tells who waits for this key that the queue has items now. Of PyTorch's clients only the oldest hears of it:
// they wait in order to pop, and the others would find the queue empty. Native clients have a pop that waits, so their
// WAIT means just what it says.
func (m *Machine) wakeQueue(key []byte) {
	if len(m.waiting) == 0 {
		return
	}
	l := m.waiting[string(key)]
	if l == nil {
		return
	}
	woken := false
	for range l.n {
		n := l.head
		if n == nil || woken && l.natives == 0 {
			break
		}
		n.remove()
		native := n.wait.conn.dialect == wire.Native
		if n.wait.kind != waitKeys || woken && !native {
			l.push(n)
			continue
		}
		woken = woken || !native
		m.arrived(n.wait)
	}
	l.reap()
}

func (m *Machine) pop(c *Conn, r *wire.Request) error {
	q := m.queues[string(r.Key)]
	if q == nil {
		if c.dialect == wire.Native && r.Wait {
			return m.open(c, r, waitPop)
		}
		m.replyInt(c, r.ID, 0)
		return nil
	}
	n := q.len()
	if err := m.replyFits(len(q.items[q.first])); err != nil {
		return err
	}
	item := q.take()
	m.extraBytes -= int64(len(item)) + itemCost
	if n == 1 {
		delete(m.queues, string(r.Key))
		m.extraBytes -= int64(len(r.Key)) + itemCost
	}
	start := m.begin(c, r.ID)
	c.out = wire.AppendBytes(wire.AppendInt(c.out, int64(n)), item)
	m.end(c, start)
	return nil
}
