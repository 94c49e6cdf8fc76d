// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"unsafe"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/linked"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// wait is a request that is answered later: when the keys it lacks exist, an item is in its queue, or its barrier is
// full.
type wait struct {
	conn    *Conn
	id      uint32 // native: the frame to answer
	kind    waitKind
	gone    bool // answered or forgotten
	due     bool // will be answered by wake, whatever becomes of its keys; not for those that return values
	held    bool // lacks nothing but room for its reply, see crowd.go
	needs   int  // when held: bytes of the reply
	missing int
	since   int64
	size    int64     // barrier: how many must come
	barrier *barrier  // where it stands, and at which place of it
	place   int       //
	keys    wire.List // native: in the order of the request, for the reply
	nodes   []node    // one for each key, see below
	cost    int64     // bytes that it was counted with
	first   [1]node   // backs nodes in the usual case of one key

	ofConn linked.Place[wait] // among those of its connection
	ofAll  linked.Place[wait] // among all
}

type waitKind uint8

const (
	waitKeys     waitKind = iota // WAIT of a native client: all keys exist at the same time
	waitOnce                     // WAIT of PyTorch's clients: each key has been there once
	waitGet                      // native GET
	waitMultiGet                 // native MULTI_GET
	waitPop                      // native QUEUE_POP
	waitBarrier                  // BARRIER
	waitKinds
)

// node stands for one wait in the list of one key. A native wait stands in the lists of all its keys until it is answered,
// and missing is counted up and down as they come and go: what comes never makes anybody look at all keys again. The wait
// of a PyTorch client leaves the list of a key that has come.
type node struct {
	wait *wait
	key  *keyWaits
	at   linked.Place[node]
}

// keyWaits holds who waits for a key, by what they wait for, the oldest first.
type keyWaits struct {
	key    string
	chains [waitBarrier]linked.List[node]
}

// enlist puts w into the list of a key.
func (m *Machine) enlist(w *wait, n *node, key []byte) {
	k := m.waiting[string(key)]
	if k == nil {
		k = &keyWaits{key: string(key)}
		m.waiting[k.key] = k
	}
	n.wait, n.key = w, k
	k.chains[w.kind].Add(&n.at, n)
}

// delist takes n off its list, if it is on one.
func (m *Machine) delist(n *node) {
	k := n.key
	if k == nil {
		return
	}
	n.key = nil
	k.chains[n.wait.kind].Remove(&n.at)
	for i := range k.chains {
		if k.chains[i].First() != nil {
			return
		}
	}
	delete(m.waiting, k.key)
}

const (
	waitCost = int64(unsafe.Sizeof(wait{}))
	nodeCost = int64(unsafe.Sizeof(node{})) + 128 // and its share of a list
)

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
	cost := waitCost + nodeCost*int64(max(r.List.Count, 1)) + int64(len(r.Key)) + int64(2*r.List.Size())
	if err := m.roomToWait(c, cost); err != nil {
		return err
	}
	w := &wait{conn: c, id: r.ID, kind: kind, since: m.now, cost: cost, size: r.Num}
	switch kind {
	case waitBarrier:
		m.joinBarrier(w, r.Key)
	case waitGet, waitPop:
		if kind == waitGet {
			w.keys = wire.NewList(r.Key)
		}
		w.nodes, w.missing = w.first[:], 1
		m.enlist(w, &w.nodes[0], r.Key)
	default:
		if kind != waitOnce {
			w.keys = r.List.Clone()
		}
		m.require(w, r.List)
	}
	m.list(w)
	return nil
}

// require puts w into the lists of its keys and counts those that are missing.
func (m *Machine) require(w *wait, keys wire.List) {
	if w.nodes = w.first[:0]; keys.Count > 1 {
		w.nodes = make([]node, 0, keys.Count)
	}
	for !keys.Empty() {
		key := keys.Next()
		m.work++
		missing := !m.satisfies(w.kind, key)
		if missing {
			w.missing++
		} else if w.kind == waitOnce {
			continue
		}
		w.nodes = append(w.nodes, node{})
		m.enlist(w, &w.nodes[len(w.nodes)-1], key)
	}
}

// satisfies reports whether a key is what this kind of wait needs. A queue is enough for WAIT but has no value.
func (m *Machine) satisfies(kind waitKind, key []byte) bool {
	if kind == waitKeys || kind == waitOnce {
		return m.exists(key)
	}
	return m.table.find(key) != nil
}

// list makes w known to its connection and to the list of all.
func (m *Machine) list(w *wait) {
	c := w.conn
	c.waits.Add(&w.ofConn, w)
	c.nWaits++
	if c.dialect == wire.Native {
		if c.byID == nil {
			c.byID = map[uint32]*wait{}
		}
		c.byID[w.id] = w
	}
	m.allWaits.Add(&w.ofAll, w)
	m.waits++
	c.waitBytes += w.cost
	m.waitBytes += w.cost
}

// forget removes a wait from everywhere.
func (m *Machine) forget(w *wait) {
	c := w.conn
	m.work += uint64(len(w.nodes))
	for i := range w.nodes {
		m.delist(&w.nodes[i])
	}
	if w.barrier != nil {
		m.leaveBarrier(w)
	}
	c.waits.Remove(&w.ofConn)
	m.allWaits.Remove(&w.ofAll)
	c.nWaits--
	if c.byID != nil {
		delete(c.byID, w.id)
	}
	w.gone = true
	m.waits--
	c.waitBytes -= w.cost
	m.waitBytes -= w.cost
}

func (m *Machine) dropWaits(c *Conn) {
	for p := c.waits.First(); p != nil; p = c.waits.First() {
		m.forget(p.Of())
	}
}

// wait answers WAIT, now or later.
func (m *Machine) wait(c *Conn, r *wire.Request) error {
	kind := waitOnce
	if c.dialect == wire.Native {
		kind = waitKeys
	}
	for list := r.List; !list.Empty(); {
		m.work++
		if !m.exists(list.Next()) {
			return m.open(c, r, kind)
		}
	}
	m.replyByte(c, r.ID, wire.StopWaiting)
	return nil
}

// count adds to the number of missing keys of all waits in a list, and notes who lacks nothing any more.
func (m *Machine) count(l *linked.List[node], by int) {
	for p := l.First(); p != nil; p = p.Next() {
		m.work++
		w := p.Of().wait
		if w.missing += by; w.missing == 0 {
			m.makeReady(w)
		}
	}
}

// came takes a wait of a PyTorch client off the list of a key that has come.
func (m *Machine) came(n *node) {
	w := n.wait
	m.work++
	m.delist(n)
	if w.missing--; w.missing == 0 {
		m.makeReady(w)
	}
}

// makeReady notes that a wait lacks nothing any more. It is answered by wake, perhaps in a later turn. What it waited for has
// been there, so a WAIT is answered even if that is gone by then; whoever wants values goes on waiting for them.
func (m *Machine) makeReady(w *wait) {
	if w.due {
		return
	}
	w.due = w.kind != waitGet && w.kind != waitMultiGet
	m.ready = append(m.ready, w)
}

// created tells who waits for a key that it has a value now. They are answered by wake.
func (m *Machine) created(key []byte) {
	if len(m.waiting) == 0 {
		return
	}
	k := m.waiting[string(key)]
	if k == nil {
		return
	}
	if m.queues[k.key] == nil {
		m.count(&k.chains[waitKeys], -1)
	}
	m.count(&k.chains[waitGet], -1)
	m.count(&k.chains[waitMultiGet], -1)
	for p := k.chains[waitOnce].First(); p != nil; p = k.chains[waitOnce].First() {
		m.came(p.Of())
	}
}

// deleted tells who waits for a key that it has no value any more.
func (m *Machine) deleted(key []byte) {
	if len(m.waiting) == 0 {
		return
	}
	if k := m.waiting[string(key)]; k != nil {
		m.count(&k.chains[waitGet], 1)
		m.count(&k.chains[waitMultiGet], 1)
		if m.queues[k.key] == nil {
			m.count(&k.chains[waitKeys], 1)
		}
	}
}

// wake answers those that were found to lack nothing, in their order: as many as one client's turn allows, the others with
// the next turns. It comes last in a step, when all keys of a request are stored.
func (m *Machine) wake() {
	if m.woken == 0 { // else there are others before them
		m.wakeUntil(m.work + sliceWork)
	}
}

// wakeUntil is wake up to an amount of work.
func (m *Machine) wakeUntil(end uint64) {
	for ; m.woken < len(m.ready); m.woken++ {
		if m.work >= end {
			if m.woken > len(m.ready)/2 {
				m.ready = slices.Delete(m.ready, 0, m.woken-1) // the one that stays says that there is more to do
				m.woken = 1
			}
			return
		}
		w := m.ready[m.woken]
		m.ready[m.woken] = nil
		m.work++
		if !w.gone && !w.held && (w.due || w.missing == 0) {
			m.work += answerWork
			m.finish(w)
		}
	}
	if m.ready, m.woken = m.ready[:0], 0; cap(m.ready) > sliceWork {
		m.ready = nil
	}
}

// finish answers a wait that lacks nothing any more.
func (m *Machine) finish(w *wait) {
	c, id := w.conn, w.id
	if w.kind != waitGet && w.kind != waitMultiGet {
		m.forget(w)
		m.replyByte(c, id, wire.StopWaiting)
		return
	}
	size, _ := m.valueSize(w.keys)
	switch err := m.replyFits(size); err.(type) { //nolint:errorlint // never wrapped
	case nil:
		list := w.keys
		m.forget(w)
		m.sendValues(c, id, list, size)
	case crowdedError:
		m.holdWait(w, size)
	default:
		m.forget(w)
		m.refuseRequest(c, id, err)
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
