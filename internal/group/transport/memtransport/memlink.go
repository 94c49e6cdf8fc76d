// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package memtransport is a mesh in memory, for tests: all ranks in one process, no sockets and no goroutines. Waiting uses
// channels only, so it works inside testing/synctest bubbles. Messages match in the order of posting.
package memtransport

import (
	"context"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// message is one delivered message, for traces.
type message struct {
	From, To int
	Slot     uint64
	Data     []byte // a copy
	Room     int    // what the receiver had posted
}

// world is the ranks of one group.
type world struct {
	mu     sync.Mutex
	ranks  []*mesh
	queues map[key]*queue
	lost   []error
	trace  func(message)
}

type key struct {
	from, to int
	slot     uint64
}

type queue struct{ sends, recvs []*transport.Op }

// mesh is one rank of a World.
type mesh struct {
	w      *world
	rank   int
	anys   []*transport.Op
	failed error
}

var _ transport.Mesh = (*mesh)(nil)

// New returns a world of size ranks.
func New(size int) *world {
	w := &world{queues: map[key]*queue{}, lost: make([]error, size)}
	for r := range size {
		w.ranks = append(w.ranks, &mesh{w: w, rank: r})
	}
	return w
}

// Trace calls f for every message, in order.
func (w *world) Trace(f func(message)) { w.trace = f }

// mesh returns rank's end.
func (w *world) Mesh(rank int) *mesh { return w.ranks[rank] }

// Kill makes rank vanish: the ops of all others that need it end with cohort.PeerLost, and its own with cohort.Closed.
func (w *world) Kill(rank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kill(rank, cohort.New("memlink", cohort.Closed, "killed"))
}

func (w *world) kill(rank int, own error) {
	if w.lost[rank] != nil {
		return
	}
	e := cohort.New("memlink", cohort.PeerLost, "the rank is gone")
	e.Rank = cohort.Rank(rank)
	w.lost[rank] = e
	m := w.ranks[rank]
	if m.failed == nil {
		m.failed = own
	}
	for k, q := range w.queues {
		if k.from != rank && k.to != rank {
			continue
		}
		sendErr, recvErr := error(e), error(e)
		if k.from == rank {
			sendErr = m.failed
		} else {
			recvErr = m.failed
		}
		for _, op := range q.sends {
			op.Complete(sendErr)
		}
		for _, op := range q.recvs {
			op.Complete(recvErr)
		}
		delete(w.queues, k)
	}
	for _, op := range m.anys {
		op.Complete(m.failed)
	}
	m.anys = nil
	for _, other := range w.ranks {
		other.anys = slices.DeleteFunc(other.anys, func(op *transport.Op) bool {
			if other.alive(op) {
				return false
			}
			op.Complete(e)
			return true
		})
	}
}

// alive reports whether a rank is left that op may receive from.
func (m *mesh) alive(op *transport.Op) bool {
	for r := range m.w.ranks {
		if r != m.rank && op.Accepts(r) && m.w.lost[r] == nil {
			return true
		}
	}
	return false
}

// Rank returns the mesh's rank.
func (m *mesh) Rank() int { return m.rank }

// Size returns the number of ranks.
func (m *mesh) Size() int { return len(m.w.ranks) }

func (m *mesh) refused(peer int) error {
	switch {
	case m.failed != nil:
		return m.failed
	case peer < 0 || peer >= len(m.w.ranks) || peer == m.rank:
		return cohort.Newf("memlink", cohort.InvalidArgument, "rank %d cannot exchange messages with rank %d", m.rank, peer)
	}
	return m.w.lost[peer]
}

// Send posts a message.
func (m *mesh) Send(op *transport.Op) {
	op.Begin()
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := m.refused(op.Peer); err != nil {
		op.Complete(err)
		return
	}
	q := w.queue(m.rank, op.Peer, op.Slot)
	if len(q.recvs) == 0 {
		to := w.ranks[op.Peer]
		for i, a := range to.anys {
			if len(q.sends) == 0 && a.Slot == op.Slot && a.Accepts(m.rank) {
				to.anys = slices.Delete(to.anys, i, i+1)
				w.deliver(m.rank, op.Peer, op, a)
				w.settle(m.rank, op.Peer, op.Slot, q)
				return
			}
		}
		q.sends = append(q.sends, op)
		return
	}
	recv := q.recvs[0]
	q.recvs = q.recvs[1:]
	w.deliver(m.rank, op.Peer, op, recv)
	w.settle(m.rank, op.Peer, op.Slot, q)
}

// Recv posts room for a message.
func (m *mesh) Recv(op *transport.Op) {
	op.Begin()
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if op.Peer == transport.AnyPeer {
		m.recvAny(op)
		return
	}
	if err := m.refused(op.Peer); err != nil {
		op.Complete(err)
		return
	}
	q := w.queue(op.Peer, m.rank, op.Slot)
	if len(q.sends) == 0 {
		q.recvs = append(q.recvs, op)
		return
	}
	send := q.sends[0]
	q.sends = q.sends[1:]
	w.deliver(op.Peer, m.rank, send, op)
	w.settle(op.Peer, m.rank, op.Slot, q)
}

func (m *mesh) recvAny(op *transport.Op) {
	if m.failed != nil {
		op.Complete(m.failed)
		return
	}
	for r := range m.w.ranks {
		q := m.w.queues[key{r, m.rank, op.Slot}]
		if q != nil && len(q.sends) > 0 && op.Accepts(r) {
			send := q.sends[0]
			q.sends = q.sends[1:]
			m.w.deliver(r, m.rank, send, op)
			m.w.settle(r, m.rank, op.Slot, q)
			return
		}
	}
	if !m.alive(op) {
		op.Complete(cohort.New("memlink", cohort.PeerLost, "no rank to receive from is left"))
		return
	}
	m.anys = append(m.anys, op)
}

func (w *world) queue(from, to int, slot uint64) *queue {
	k := key{from, to, slot}
	q := w.queues[k]
	if q == nil {
		q = &queue{}
		w.queues[k] = q
	}
	return q
}

func (w *world) settle(from, to int, slot uint64, q *queue) {
	if len(q.sends) == 0 && len(q.recvs) == 0 {
		delete(w.queues, key{from, to, slot})
	}
}

func (w *world) deliver(from, to int, send, recv *transport.Op) {
	if w.trace != nil {
		w.trace(message{from, to, send.Slot, slices.Clone(send.Buf), len(recv.Buf)})
	}
	if len(send.Buf) > len(recv.Buf) {
		err := cohort.Newf("memlink", cohort.Mismatch, "a message of %d bytes for a receive of %d", len(send.Buf), len(recv.Buf))
		send.Complete(err)
		recv.Complete(err)
		return
	}
	recv.N, recv.Source = copy(recv.Buf, send.Buf), from
	send.Complete(nil)
	recv.Complete(nil)
}

// Wait returns when op is complete.
func (m *mesh) Wait(ctx context.Context, op *transport.Op) error { return op.Await(ctx) }

// Cancel withdraws an op that no peer has matched.
func (m *mesh) Cancel(op *transport.Op) bool {
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if op.Completed() {
		return false
	}
	found := take(&m.anys, op)
	if !found {
		for _, k := range []key{{m.rank, op.Peer, op.Slot}, {op.Peer, m.rank, op.Slot}} {
			if q := w.queues[k]; q != nil && !found {
				if k.from == m.rank {
					found = take(&q.sends, op)
				} else {
					found = take(&q.recvs, op)
				}
				w.settle(k.from, k.to, k.slot, q)
			}
		}
	}
	if found {
		op.Complete(cohort.New("memlink", cohort.Aborted, "withdrawn"))
	}
	return found
}

func take(ops *[]*transport.Op, op *transport.Op) bool {
	i := slices.Index(*ops, op)
	if i < 0 {
		return false
	}
	*ops = slices.Delete(*ops, i, i+1)
	return true
}

// Fail ends every op of this rank with err; for the other ranks it is lost.
func (m *mesh) Fail(err error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.kill(m.rank, err)
}

// Close ends the rank.
func (m *mesh) Close() error {
	m.Fail(cohort.New("memlink", cohort.Closed, "the mesh was closed"))
	return nil
}
