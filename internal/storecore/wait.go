// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"unsafe"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// wait is a request that is answered later: when the keys it lacks exist, an item is in its queue, or its barrier is
// full.
type wait struct {
	conn    *Conn
	id      uint32 // native: the frame to answer
	kind    waitKind
	missing int
	since   int64
	size    int64   // barrier: how many must come
	keys    rawList // what to look at again before the answer, where that is promised
	nodes   []node  // one for each key that is missing
	cost    int64   // bytes that it was counted with
	first   [1]node // backs nodes in the usual case of one key
	prev    *wait   // in the connection's list
	next    *wait
}

type waitKind uint8

const (
	waitKeys     waitKind = iota // WAIT
	waitGet                      // native GET
	waitMultiGet                 // native MULTI_GET
	waitPop                      // native QUEUE_POP
	waitBarrier                  // BARRIER
)

// node stands for one wait in the list of one key.
type node struct {
	wait       *wait
	list       *waitList
	prev, next *node
}

// waitList holds who waits for a key, the oldest first.
type waitList struct {
	key        string
	in         map[string]*waitList
	head, tail *node
	n          int
	pops       int // of them waiting pops
	natives    int // of them of native clients
}

// rawList is a copy of a request's list of keys.
type rawList struct {
	list wire.List
	has  bool
}

func (l *waitList) push(n *node) {
	n.list, n.prev, n.next = l, l.tail, nil
	if l.tail == nil {
		l.head = n
	} else {
		l.tail.next = n
	}
	l.tail = n
	l.count(n, 1)
}

// count keeps the numbers that spare a walk over a long list.
func (l *waitList) count(n *node, d int) {
	l.n += d
	if n.wait.kind == waitPop {
		l.pops += d
	}
	if n.wait.conn.dialect == wire.Native {
		l.natives += d
	}
}

// remove takes n off its list. The list itself stays; reap forgets an empty one.
func (n *node) remove() {
	l := n.list
	if n.prev == nil {
		l.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.list, n.prev, n.next = nil, nil, nil
	l.count(n, -1)
}

func (l *waitList) reap() {
	if l.n == 0 && l.in[l.key] == l {
		delete(l.in, l.key)
	}
}

const nodeCost = int64(unsafe.Sizeof(node{})) + 64 // and its share of a list

// open registers a wait for a request. It finds out itself which keys are missing.
func (m *Machine) open(c *Conn, r *wire.Request, kind waitKind) error {
	if c.nWaits >= m.limits.Waits {
		return dist.Newf("tcpstore: serve", dist.Exhausted, "%d waits of one client are open, the limit is %d", c.nWaits, m.limits.Waits)
	}
	if c.dialect == wire.Native && c.byID[r.ID] != nil {
		err := dist.Newf("tcpstore: serve", dist.Protocol, "request id %d is used twice at a time", r.ID)
		m.Refuse(c, err)
		return err
	}
	cost := int64(unsafe.Sizeof(wait{})) + nodeCost*int64(max(r.List.Count, 1)) + int64(len(r.Key)) + int64(2*r.List.Size())
	if err := m.room(int(cost)); err != nil {
		return err
	}
	w := &wait{conn: c, id: r.ID, kind: kind, since: m.now, cost: cost, size: r.Num}
	switch kind {
	case waitKeys, waitMultiGet:
		if c.dialect == wire.Native {
			w.keys = rawList{list: r.List.Clone(), has: true}
		}
		m.require(w, r.List)
	case waitBarrier:
		w.nodes, w.missing = w.first[:], 1
		m.enlist(w, &w.nodes[0], m.barriers, r.Key)
	case waitGet, waitPop:
		if kind == waitGet {
			w.keys = rawList{list: wire.NewList(r.Key), has: true}
		}
		w.nodes, w.missing = w.first[:], 1
		m.enlist(w, &w.nodes[0], m.waiting, r.Key)
	}
	w.next = c.waits
	if c.waits != nil {
		c.waits.prev = w
	}
	c.waits = w
	c.nWaits++
	if c.dialect == wire.Native {
		if c.byID == nil {
			c.byID = map[uint32]*wait{}
		}
		c.byID[r.ID] = w
	}
	m.waits++
	m.extraBytes += cost
	return nil
}

// require puts w into the lists of those of its keys that are missing.
func (m *Machine) require(w *wait, keys wire.List) {
	w.missing = 0
	for list := keys; !list.Empty(); {
		if !m.satisfies(w.kind, list.Next()) {
			w.missing++
		}
	}
	if w.nodes = w.first[:]; w.missing > 1 {
		w.nodes = make([]node, w.missing)
	}
	i := 0
	for list := keys; !list.Empty() && i < w.missing; {
		key := list.Next()
		if !m.satisfies(w.kind, key) {
			m.enlist(w, &w.nodes[i], m.waiting, key)
			i++
		}
	}
}

// satisfies reports whether a key is what this kind of wait needs. A queue is enough for WAIT but has no value.
func (m *Machine) satisfies(kind waitKind, key []byte) bool {
	if kind == waitKeys {
		return m.exists(key)
	}
	return m.table.find(key) != nil
}

func (m *Machine) enlist(w *wait, n *node, lists map[string]*waitList, key []byte) {
	l := lists[string(key)]
	if l == nil {
		l = &waitList{key: string(key), in: lists}
		lists[l.key] = l
	}
	n.wait = w
	l.push(n)
}

// forget removes a wait from everywhere.
func (m *Machine) forget(w *wait) {
	for i := range w.nodes {
		if n := &w.nodes[i]; n.list != nil {
			l := n.list
			n.remove()
			l.reap()
		}
	}
	if w.prev == nil {
		w.conn.waits = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.conn.nWaits--
	if w.conn.byID != nil {
		delete(w.conn.byID, w.id)
	}
	m.waits--
	m.extraBytes -= w.cost
}

func (m *Machine) dropWaits(c *Conn) {
	for c.waits != nil {
		m.forget(c.waits)
	}
}

// wait answers WAIT, now or later.
func (m *Machine) wait(c *Conn, r *wire.Request) error {
	for list := r.List; !list.Empty(); {
		if !m.exists(list.Next()) {
			return m.open(c, r, waitKeys)
		}
	}
	m.replyByte(c, r.ID, wire.StopWaiting)
	return nil
}

// created wakes who waits for a key that has just come into being.
func (m *Machine) created(key []byte) {
	if len(m.waiting) == 0 {
		return
	}
	l := m.waiting[string(key)]
	if l == nil {
		return
	}
	for range l.n {
		n := l.head
		if n == nil {
			break
		}
		n.remove()
		if n.wait.kind == waitPop {
			l.push(n) // it waits for an item, not for a value
			continue
		}
		m.arrived(n.wait)
	}
	l.reap()
}

// arrived tells a wait that one of its keys is there.
func (m *Machine) arrived(w *wait) {
	if w.missing--; w.missing > 0 {
		return
	}
	if w.keys.has {
		// A native client is promised that all keys exist when it hears of it; one may have been deleted meanwhile.
		// The others get PyTorch's rule: each key has been there once.
		if m.require(w, w.keys.list); w.missing > 0 {
			return
		}
	}
	m.finish(w)
}

// finish answers a wait that lacks nothing any more.
func (m *Machine) finish(w *wait) {
	c, id := w.conn, w.id
	m.forget(w)
	switch w.kind {
	case waitGet:
		value := m.table.find(w.keys.list.Next()).value()
		if err := m.replyFits(len(value)); err != nil {
			m.refuseRequest(c, id, err)
			return
		}
		m.replyBytes(c, id, value)
	case waitMultiGet:
		size := 0
		for list := w.keys.list; !list.Empty(); {
			size += 8 + len(m.table.find(list.Next()).value())
		}
		if err := m.replyFits(size); err != nil {
			m.refuseRequest(c, id, err)
			return
		}
		m.sendValues(c, id, w.keys.list)
	default:
		m.replyByte(c, id, wire.StopWaiting)
	}
}

// cancelWait ends waits of a client that has lost its patience.
func (m *Machine) cancelWait(c *Conn, r *wire.Request) {
	if c.dialect != wire.Native {
		m.dropWaits(c)
		m.replyByte(c, 0, wire.WaitCanceled)
		return
	}
	if w := c.byID[r.Nonce]; w != nil {
		m.forget(w)
		m.refuseRequest(c, r.Nonce, dist.New("tcpstore: wait", dist.Canceled, "at the client's request"))
	}
}

// barrier counts a member in and lets all go once enough have come.
func (m *Machine) barrier(c *Conn, r *wire.Request) error {
	n, err := m.add(r.Key, 1)
	if err != nil {
		return err
	}
	m.added(r.Key, n)
	if n.sum >= r.Num {
		m.replyByte(c, r.ID, wire.StopWaiting)
	} else if err = m.open(c, r, waitBarrier); err != nil {
		return err
	}
	l := m.barriers[string(r.Key)]
	if l == nil {
		return nil
	}
	for range l.n {
		nd := l.head
		if nd == nil {
			break
		}
		nd.remove()
		if nd.wait.size > n.sum {
			l.push(nd)
			continue
		}
		m.finish(nd.wait)
	}
	l.reap()
	return nil
}
