// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"unsafe"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/ilist"
)

// wait is a request that is answered later: when the keys it lacks exist, an item is in its queue, or its barrier is
// full.
type wait struct {
	conn     *Conn
	id       uint32 // native: the frame to answer
	kind     waitKind
	gone     bool // answered or forgotten
	due      bool // will be answered by wake, whatever becomes of its keys; not for those that return values
	proposed bool // a pop: a command that takes an item for it is under way
	canceled bool // a pop that is proposed: its client does not want to wait any longer
	held     bool // lacks nothing but room for its reply, see admission_replies.go
	needs    int  // when held: bytes of the reply
	missing  int  // keys, as far as it has been notified, see wait_keys.go
	since    int64
	size     int64     // barrier: how many must come
	barrier  *barrier  // where it stands, and at which place of it
	place    int       //
	keys     wire.List // native: in the order of the request, for the reply
	nodes    []node    // one for each key
	cost     int64     // bytes that it was counted with
	first    [1]node   // backs nodes in the usual case of one key
	task     *openTask // of a session; nil: the answer is not remembered

	ofConn ilist.Place[wait] // among those of its connection
	ofAll  ilist.Place[wait] // among all
}

// waits is all open waits, by what they wait for, and those that are to be notified.
type waits struct {
	byKey        map[string]*keyWaits
	barriers     map[string]*barrier
	all          ilist.List[wait]
	n            int
	pending      []pendingNotification // what waits are to be notified of, see wait_keys.go
	stalePending bool                  // some are left of earlier steps
	ready        []*wait               // found to lack nothing, to be answered by wake
	woken        int                   // how many of them are done with
}

func newWaits() waits { return waits{byKey: map[string]*keyWaits{}, barriers: map[string]*barrier{}} }

func (ws *waits) add(w *wait) {
	ws.all.Add(&w.ofAll, w)
	ws.n++
}

func (ws *waits) remove(w *wait) {
	ws.all.Remove(&w.ofAll)
	ws.n--
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

const (
	waitCost = int64(unsafe.Sizeof(wait{}))
	nodeCost = int64(unsafe.Sizeof(node{})) + int64(unsafe.Sizeof(keyWaits{})) + 64 // and its share of a map
)

// open registers a wait for a request. It finds out itself which keys are missing.
func (m *Machine) open(c *Conn, r *wire.Request, kind waitKind) error {
	if c.closed { // its command was applied nevertheless
		return nil
	}
	if err := m.mayOpen(c, r); err != nil {
		return err
	}
	if c.dialect == wire.Native && c.holdings.byID[r.ID] != nil {
		err := cohort.Newf("tcpstore: serve", cohort.Protocol, "request id %d is used twice at a time", r.ID)
		if m.Refuse(c, err); m.applies() {
			return nil // what is applied does not depend on who is connected
		}
		return err
	}
	w := &wait{conn: c, id: r.ID, kind: kind, since: m.clock.now, cost: waitSize(r), size: r.Num}
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
		if kind != waitOnce || r.Op == wire.Await {
			w.keys = r.List.Clone()
		}
		m.require(w, r.List)
	}
	m.list(w)
	return nil
}

// waitSize is what a wait for a request takes.
func waitSize(r *wire.Request) int64 {
	return waitCost + nodeCost*int64(max(r.List.Count, 1)) + int64(len(r.Key)) + int64(2*r.List.Size())
}

// mayOpen reports an error when a wait of c has no room.
func (m *Machine) mayOpen(c *Conn, r *wire.Request) error {
	if c.holdings.nWaits >= m.config.Limits.Waits && !m.applies() {
		return cohort.Newf("tcpstore: serve", cohort.Exhausted, "%d waits of one client are open, the limit is %d",
			c.holdings.nWaits, m.config.Limits.Waits)
	}
	return m.roomToWait(c, waitSize(r))
}

// require puts w into the lists of its keys and counts those that are missing.
func (m *Machine) require(w *wait, keys wire.List) {
	if w.nodes = w.first[:0]; keys.Count > 1 {
		w.nodes = make([]node, 0, keys.Count)
	}
	for !keys.Empty() {
		key := keys.Next()
		m.turn.work++
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
	return m.table.Find(key) != nil
}

// await is WAIT as clients of PyTorch know it, for a gateway that asks for them.
func (m *Machine) await(c *Conn, r *wire.Request) error {
	for list := r.List; !list.Empty(); {
		m.turn.work++
		if !m.exists(list.Next()) {
			return m.open(c, r, waitOnce)
		}
	}
	answer := wire.StopWaiting
	if !m.allStored(r.List) {
		answer = wire.QueueReady
	}
	m.replyByte(c, r.ID, answer)
	return nil
}

// allStored reports whether none of the keys is a queue alone.
func (m *Machine) allStored(keys wire.List) bool {
	for len(m.queues.byKey) > 0 && !keys.Empty() {
		m.turn.work++
		if key := keys.Next(); m.table.Find(key) == nil && m.queues.byKey[string(key)] != nil {
			return false
		}
	}
	return true
}

// list makes w known to its connection and to the list of all.
func (m *Machine) list(w *wait) {
	w.conn.holdings.add(w, w.conn.dialect == wire.Native)
	m.waits.add(w)
	m.chargeHoldings(w.conn, w.cost)
}

// forget removes a wait from everywhere.
func (m *Machine) forget(w *wait) {
	m.turn.work += uint64(len(w.nodes))
	for i := range w.nodes {
		m.waits.delist(&w.nodes[i])
	}
	if w.barrier != nil {
		m.leaveBarrier(w)
	}
	w.conn.holdings.remove(w)
	m.waits.remove(w)
	m.chargeHoldings(w.conn, -w.cost)
	w.gone = true
}

func (m *Machine) dropWaits(c *Conn) {
	for p := c.holdings.waits.First(); p != nil; p = c.holdings.waits.First() {
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
		m.turn.work++
		if !m.exists(list.Next()) {
			return m.open(c, r, kind)
		}
	}
	m.replyByte(c, r.ID, wire.StopWaiting)
	return nil
}

// makeReady notes that a wait lacks nothing any more. It is answered by wake, perhaps in a later turn. What it waited for has
// been there, so a WAIT is answered even if that is gone by then; a wait for values goes on.
func (m *Machine) makeReady(w *wait) {
	if w.due {
		return
	}
	if w.kind == waitKeys && m.recount(w) {
		return // it had not been notified yet that another one is gone
	}
	w.due = w.kind != waitGet && w.kind != waitMultiGet
	m.waits.ready = append(m.waits.ready, w)
}

// wake answers those that were found to lack nothing, in their order: as many as one client's turn allows, the others with
// the next turns. It comes last in a step, when all keys of a request are stored.
func (m *Machine) wake() {
	m.notifyOwn()
	if m.waits.woken == 0 { // else there are others before them
		m.wakeUntil(m.turn.work + sliceWork)
	}
}

// wakeUntil is wake up to an amount of work.
func (m *Machine) wakeUntil(end uint64) {
	ws := &m.waits
	for ; ws.woken < len(ws.ready); ws.woken++ {
		if m.turn.work >= end {
			if ws.woken > len(ws.ready)/2 {
				ws.ready = slices.Delete(ws.ready, 0, ws.woken-1) // the one that stays says that there is more to do
				ws.woken = 1
			}
			return
		}
		w := ws.ready[ws.woken]
		ws.ready[ws.woken] = nil
		m.turn.work++
		if !w.gone && !w.held && (w.due || w.missing == 0) {
			m.turn.work += answerWork
			m.finish(w)
		}
	}
	if ws.ready, ws.woken = ws.ready[:0], 0; cap(ws.ready) > sliceWork {
		ws.ready = nil
	}
}

// finish answers a wait that lacks nothing any more.
func (m *Machine) finish(w *wait) {
	c, id := w.conn, w.id
	if w.kind != waitGet && w.kind != waitMultiGet {
		answer := wire.StopWaiting
		if w.kind == waitOnce && !m.allStored(w.keys) {
			answer = wire.QueueReady
		}
		before := m.answering(w)
		m.forget(w)
		m.replyByte(c, id, answer)
		m.recorder = before
		return
	}
	values := m.measure(w.keys)
	if values.missing {
		m.recount(w) // it is gone again: it goes on waiting
		return
	}
	switch err := m.replyFits(values.size); err.(type) { //nolint:errorlint // never wrapped
	case nil:
		list := w.keys
		m.forget(w)
		m.sendValues(c, id, list, values.copied)
	case noRoomError:
		m.holdWait(w, values.size)
	default:
		m.forget(w)
		m.refuseRequest(c, id, err)
	}
}

// cancelWait ends waits of a client that has lost its patience.
func (m *Machine) cancelWait(c *Conn, r *wire.Request) error {
	if c.dialect != wire.Native {
		m.dropWaits(c)
		m.replyByte(c, 0, wire.WaitCanceled)
		return nil
	}
	switch w := c.holdings.byID[r.Nonce]; {
	case w == nil:
	case w.proposed && w.task != nil:
		w.canceled = true // if it does not get the item that is on its way
	default:
		before := m.answering(w)
		m.forget(w)
		m.refuseRequest(c, r.Nonce, canceled())
		m.recorder = before
	}
	return nil
}

func canceled() error {
	return cohort.New("tcpstore: wait", cohort.Canceled, "at the client's request")
}

// holdings is what one connection has in the store beside keys: waits, watches and claims. They share a part of the memory.
type holdings struct {
	waits   ilist.List[wait] // all open ones
	byID    map[uint32]*wait // native: the same
	nWaits  int
	watches map[string]struct{}
	image   *Image   // that it is being sent
	holder  holderID // its name as a holder of claims, once it has claimed one
	bytes   int64    // of all of them
}

// add adds a wait. Those of native clients are also found by their ids.
func (s *holdings) add(w *wait, native bool) {
	s.waits.Add(&w.ofConn, w)
	s.nWaits++
	if native {
		if s.byID == nil {
			s.byID = map[uint32]*wait{}
		}
		s.byID[w.id] = w
	}
}

func (s *holdings) remove(w *wait) {
	s.waits.Remove(&w.ofConn)
	s.nWaits--
	if s.byID != nil {
		delete(s.byID, w.id)
	}
}

// stake counts bytes of a wait, watch or claim of c, or forgets them.
func (m *Machine) chargeHoldings(c *Conn, bytes int64) {
	c.holdings.bytes += bytes
	m.admission.waits += bytes
}
