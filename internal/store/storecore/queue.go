// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"slices"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// queue holds items in the order they came. An empty queue does not exist.
type queue struct {
	items [][]byte
	first int
}

// queues is all queues.
type queues struct {
	byKey map[string]*queue
	bytes int64
}

// itemCost is what an item or a watch takes beside its bytes.
const itemCost = 48

func (q *queue) len() int { return len(q.items) - q.first }

func (q *queue) take() []byte {
	item := q.items[q.first]
	q.items[q.first] = nil
	q.first++
	if q.first > 32 && q.first > len(q.items)/2 {
		q.items = slices.Delete(q.items, 0, q.first)
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
	switch {
	case m.log != nil:
		if m.put(r.Key, r.Value); m.servePops(r.Key) {
			break // as good as handed over
		}
		m.announce(r.Key)
		m.wake()
	case !m.handOver(r.Key, r.Value):
		if m.put(r.Key, r.Value) {
			m.announce(r.Key)
		} else {
			m.announceNext(r.Key)
		}
		m.wake()
	}
	m.ack(c, r.ID)
	return nil
}

// handOver gives an item to the oldest pop that waits. Only native clients have pops that wait, and while one does, the
// queue is empty. A WAIT does not come into it: its client may want to pop or may not, and a queue that holds an item
// while a pop waits for one would be wrong.
func (m *Machine) handOver(key, item []byte) bool {
	for len(m.waits.byKey) != 0 {
		k := m.waits.byKey[string(key)]
		if k == nil || k.pops.First() == nil {
			return false
		}
		w := k.pops.First().Of().wait
		c := w.conn
		if owed := c.Owed(); owed > highWater && owed+len(item) > m.config.Limits.Output {
			m.Refuse(c, m.replyTooLarge(owed+len(item))) // the item would be lost with it
			continue
		}
		before := m.answering(w)
		m.forget(w)
		start := m.beginLarge(c, w.id, len(item)+16)
		c.out.Buf = wire.AppendBytes(wire.AppendInt(c.out.Buf, 1), item)
		m.end(c, start)
		m.recorder = before
		return true
	}
	return false
}

// put puts an item into a queue, and returns whether it is the first one.
func (m *Machine) put(key, item []byte) (first bool) {
	q := m.queues.byKey[string(key)]
	first = q == nil
	if first {
		q = &queue{}
		m.queues.byKey[string(key)] = q
		m.queues.bytes += int64(len(key)) + itemCost
	}
	q.items = append(q.items, bytes.Clone(item))
	m.queues.bytes += int64(len(item)) + itemCost
	return first
}

// announce notifies who waits for a key that it is a queue with an item more. They are answered by wake.
func (m *Machine) announce(key []byte) {
	if len(m.waits.byKey) == 0 {
		return
	}
	if k := m.waits.byKey[string(key)]; k != nil {
		m.waits.markExists(k)
		m.announceNext(key)
	}
}

// announceNext is announce for a queue that has had items before. Of PyTorch's clients only the oldest is notified: they wait in order to
// pop, and the others would find the queue empty. Native clients have a pop that waits, so their WAIT means just what it says.
func (m *Machine) announceNext(key []byte) {
	if len(m.waits.byKey) == 0 {
		return
	}
	if k := m.waits.byKey[string(key)]; k != nil && k.once != nil && k.once.First() != nil {
		m.keyArrived(k.once.First().Of())
	}
}

// emptied forgets a queue without items and notifies who waits for that key.
func (m *Machine) emptied(key []byte) {
	delete(m.queues.byKey, string(key))
	m.queues.bytes -= int64(len(key)) + itemCost
	if len(m.waits.byKey) == 0 {
		return
	}
	if k := m.waits.byKey[string(key)]; k != nil && m.table.Find(key) == nil {
		m.waits.setPresent(&k.tallies[byKey], false)
		m.notifyOwn()
	}
}

func (m *Machine) queueLen(c *Conn, r *wire.Request) error {
	n := 0
	if q := m.queues.byKey[string(r.Key)]; q != nil {
		n = q.len()
	}
	m.replyInt(c, r.ID, int64(n))
	return nil
}

func (m *Machine) pop(c *Conn, r *wire.Request) error {
	q := m.queues.byKey[string(r.Key)]
	if q == nil {
		if c.dialect == wire.Native && r.Wait {
			return m.open(c, r, waitPop)
		}
		m.replyInt(c, r.ID, 0)
		return nil
	}
	n := q.len()
	if err := m.mayReply(len(q.items[q.first]), copiedSize(q.items[q.first])); err != nil {
		return err
	}
	item := q.take()
	m.queues.bytes -= int64(len(item)) + itemCost
	if n == 1 {
		m.emptied(r.Key)
	}
	start := m.beginLarge(c, r.ID, copiedSize(item)+16)
	c.out.Buf = wire.AppendInt(c.out.Buf, int64(n))
	c.out.appendValue(item, item)
	m.end(c, start)
	return nil
}
