// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/shm/shmring"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// maxOffers bounds the offers to one rank that it has not answered. Above it, messages to that rank wait here.
const maxOffers = 1 << 14

// Mesh moves messages between pairs of ranks through rings in the segment. It implements [transport.Mesh].
//
// Small messages are copied into the ring when they are posted. A large one is offered first and streams through the
// ring once the receiver has room for it, so nothing large is ever buffered. So does a small one when the receiver already keeps as
// many unexpected messages as it may: what is in a ring can always be read, and no slot blocks another. A goroutine that waits
// does the work; without one, a keeper drives posted operations every few milliseconds.
type Mesh struct {
	engine *Engine
	eager  int           // the longest message that is sent at once
	offers int           // the most to one rank that it has not answered
	slice  time.Duration // how long a driver sleeps at most, after the first time

	role   chan struct{} // holds a token while no goroutine drives
	wait   waiter        // the driver's
	wanted chan struct{} // wakes the keeper when operations are pending

	mu struct {
		sync.Mutex
		peers   []*meshPeer    // by rank; nil for the own one
		any     transport.List // receives from any rank
		early   transport.EarlyPool[offerID]
		pending int  // operations, and replies that are not in a ring yet
		moves   uint // of frames through rings
		barrier barrier
		err     error
		closed  bool
	}
}

// meshPeer is the state of the messages from and to one rank.
type meshPeer struct {
	rank     int
	out, in  shmring.Ring
	nextID   uint64
	sends    transport.List // posted, not yet in the ring
	offered  transport.List // sends that wait for a grant
	streams  transport.List // granted sends
	recvs    transport.List // posted receives
	grants   transport.List // receives whose grant is not yet in the ring
	incoming transport.List // receives whose data is on the way
	refusals []shmring.Frame
	inbox    transport.Inbox[offerID]
	gone     error
}

func newMesh(e *Engine) *Mesh {
	m := &Mesh{
		engine: e, eager: min(e.seg.ring/4, 8<<10), offers: maxOffers, slice: sleepSlice, role: make(chan struct{}, 1),
		wanted: make(chan struct{}, 1),
		wait:   waiter{engine: e},
	}
	m.mu.peers = make([]*meshPeer, e.size)
	m.role <- struct{}{}
	for _, p := range e.peers {
		m.mu.peers[p] = &meshPeer{rank: p, out: e.seg.ringOf(e.rank, p), in: e.seg.ringOf(p, e.rank)}
	}
	return m
}

// Mesh returns the point-to-point side of the segment. It ends with the engine.
func (e *Engine) Mesh() transport.Mesh { return e.mesh }

// Rank is the own rank.
func (m *Mesh) Rank() int { return m.engine.rank }

// Size is the number of ranks.
func (m *Mesh) Size() int { return m.engine.size }

func (m *Mesh) start(op *transport.Op) {
	op.Begin()
	m.mu.pending++
}

func (m *Mesh) complete(op *transport.Op, err error) {
	m.mu.pending--
	op.Complete(err)
}

// usable returns the state of a peer, or why there is none.
func (m *Mesh) usable(rank int) (*meshPeer, error) {
	switch {
	case m.mu.err != nil:
		return nil, m.mu.err
	case m.mu.closed:
		return nil, cohort.New("shm: message", cohort.Closed, "the group was closed")
	case rank < 0 || rank >= m.Size() || rank == m.Rank():
		return nil, cohort.Newf("shm: message", cohort.InvalidArgument, "rank %d of %d cannot reach rank %d", m.Rank(), m.Size(), rank)
	}
	return m.mu.peers[rank], m.mu.peers[rank].gone
}

// Send posts a message. What fits the ring is copied there at once.
func (m *Mesh) Send(op *transport.Op) {
	failpoint.At("shm.message.send")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start(op)
	p, err := m.usable(op.Peer)
	if err != nil {
		m.complete(op, err)
		return
	}
	p.sends.Push(op)
	m.flush(p)
	m.wakeKeeper()
}

// Recv posts room for a message.
func (m *Mesh) Recv(op *transport.Op) {
	failpoint.At("shm.message.recv")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start(op)
	if op.Peer == transport.AnyPeer {
		m.recvAny(op)
		return
	}
	p, err := m.usable(op.Peer)
	if p == nil {
		m.complete(op, err)
		return
	}
	op.Source = op.Peer
	if a := p.takeable(op.Slot); a != nil {
		m.takeArrival(p, a, op)
		return
	}
	if err != nil {
		m.complete(op, err)
		return
	}
	p.recvs.Push(op)
	m.wakeKeeper()
}

func (m *Mesh) recvAny(op *transport.Op) {
	var best *meshPeer
	var first *early
	var gone error
	alive := false
	for rank := range m.Size() {
		if rank == m.Rank() || !op.Accepts(rank) {
			continue
		}
		p, err := m.usable(rank)
		if p == nil {
			if gone == nil {
				gone = err
			}
			continue
		}
		if err == nil {
			alive = true
		} else if gone == nil {
			gone = err
		}
		if a := p.takeable(op.Slot); a != nil && (first == nil || a.Before(first)) {
			best, first = p, a
		}
	}
	switch {
	case best != nil:
		op.Source = best.rank
		m.takeArrival(best, first, op)
	case alive:
		m.mu.any.Push(op)
		m.wakeKeeper()
	case gone != nil:
		m.complete(op, gone)
	default:
		m.complete(op, cohort.New("shm: receive", cohort.InvalidArgument, "no rank to receive from"))
	}
}

func (m *Mesh) wakeKeeper() {
	if m.mu.pending > 0 {
		select {
		case m.wanted <- struct{}{}:
		default:
		}
	}
}

// takeable is the first early message on a slot, or nil. A lost rank sends nothing that it had offered, and what it sent
// after the offer is not what a receive on the slot is for.
func (p *meshPeer) takeable(slot uint64) *early {
	if a := p.inbox.First(slot); a != nil && (!a.Announced || p.gone == nil) {
		return a
	}
	return nil
}

// takeArrival gives an early message to its receive.
func (m *Mesh) takeArrival(p *meshPeer, a *early, op *transport.Op) {
	p.inbox.Remove(a)
	if a.Announced {
		m.answer(p, op, uint64(a.Note), a.Total)
	} else {
		m.deliver(p, op, a.Data)
	}
	m.mu.early.Recycle(a)
	m.flush(p)
	m.wakeKeeper() // what was only offered is not here yet
}

// deliver ends a receive with a whole message.
func (m *Mesh) deliver(p *meshPeer, op *transport.Op, data []byte) {
	p.in.Taken(len(data))
	if len(data) > len(op.Buf) {
		m.complete(op, transport.TooLong(p.rank, "", uint64(len(data)), len(op.Buf)))
		return
	}
	op.N, op.Source = copy(op.Buf, data), p.rank
	m.complete(op, nil)
}

// answer grants or refuses an offered message.
func (m *Mesh) answer(p *meshPeer, op *transport.Op, id, total uint64) {
	op.State.Aux, op.Source = id, p.rank
	if total > uint64(len(op.Buf)) {
		p.refusals = append(p.refusals, shmring.Frame{Kind: shmring.Refuse, ID: id, Total: uint64(len(op.Buf))})
		m.mu.pending++ // the receive ends, and the sender has to get the refusal
		m.complete(op, transport.TooLong(p.rank, "", total, len(op.Buf)))
		return
	}
	op.N = 0
	p.grants.Push(op)
}

// flush puts the frames for a rank into its ring: replies first, then messages in order, then streams.
func (m *Mesh) flush(p *meshPeer) {
	before := p.out.Pos()
	blocked := !m.fill(p)
	if blocked {
		// Ask for a wake-up, then try again: the peer may have made room in between.
		p.out.Want()
		m.fill(p)
	}
	if p.out.Pos() != before {
		m.mu.moves++
		p.out.Publish()
		m.ring(p.rank)
	}
}

// fill writes frames until none is left (true) or the ring is full.
func (m *Mesh) fill(p *meshPeer) bool {
	for len(p.refusals) > 0 {
		if !p.out.Put(p.refusals[0], nil) {
			return false
		}
		p.refusals = p.refusals[1:]
		m.mu.pending--
	}
	for op := p.grants.Head; op != nil; op = p.grants.Head {
		if !p.out.Put(shmring.Frame{Kind: shmring.Grant, ID: op.State.Aux}, nil) {
			return false
		}
		p.incoming.Push(p.grants.Pop())
	}
	for op := p.sends.Head; op != nil && p.offered.Len < m.offers; op = p.sends.Head {
		f := shmring.Frame{Kind: shmring.Eager, Slot: op.Slot, ID: p.nextID, Total: uint64(len(op.Buf))}
		payload := op.Buf
		if len(payload) > m.eager || !p.out.Affords(len(payload)) {
			f.Kind, payload = shmring.Offer, nil
		}
		if !p.out.Put(f, payload) {
			return false
		}
		op.State.Aux = p.nextID
		p.nextID++
		p.sends.Pop()
		if f.Kind == shmring.Offer {
			p.offered.Push(op)
		} else {
			m.complete(op, nil)
		}
	}
	for op := p.streams.Head; op != nil; op = p.streams.Head {
		f := shmring.Frame{Kind: shmring.Data, ID: op.State.Aux}
		part := op.Buf[op.N:min(op.N+m.engine.seg.ring/4-shmring.Unit, len(op.Buf))]
		if op.N+len(part) == len(op.Buf) {
			f.Total = shmring.LastPart
		}
		if !p.out.Put(f, part) {
			return false
		}
		if op.N += len(part); op.N == len(op.Buf) {
			p.streams.Pop()
			m.complete(op, nil)
			continue
		}
		// The receiver can begin while this continues.
		p.out.Publish()
		m.ring(p.rank)
	}
	return true
}

// ring the bell of a rank.
func (m *Mesh) ring(rank int) {
	b := m.engine.seg.bell(rank)
	atomic.AddUint32(&b.rings, 1)
	if atomic.LoadUint32(&b.sleepers) != 0 {
		futexWake(&b.rings)
	}
}

// drain reads the ring from a rank until it is empty.
func (m *Mesh) drain(p *meshPeer) {
	before := p.in.Pos()
	for {
		f, payload, ok, broken := p.in.Peek()
		if broken {
			m.violated(p, "its ring holds no valid frame")
			return
		}
		if !ok {
			break
		}
		p.in.Consume(f) // the payload stays until the release
		if m.handle(p, f, payload); m.mu.err != nil {
			return
		}
		if p.in.Pos()-before >= p.in.Len()/4 {
			before = p.in.Pos()
			m.released(p) // let the sender continue meanwhile
		}
	}
	if p.in.Pos() != before {
		m.released(p)
	}
}

func (m *Mesh) released(p *meshPeer) {
	m.mu.moves++
	if p.in.Release() {
		m.ring(p.rank)
	}
}

// handle serves one frame.
func (m *Mesh) handle(p *meshPeer, f shmring.Frame, payload []byte) {
	switch f.Kind {
	case shmring.Eager, shmring.Offer:
		m.arrive(p, f, payload)
	case shmring.Grant:
		if op := byID(&p.offered, f.ID); op != nil {
			p.offered.Remove(op)
			op.N = 0
			p.streams.Push(op)
		}
	case shmring.Refuse:
		if op := byID(&p.offered, f.ID); op != nil {
			p.offered.Remove(op)
			m.complete(op, transport.NoRoom(p.rank, "", len(op.Buf), f.Total))
		}
	case shmring.Data:
		op := byID(&p.incoming, f.ID)
		if op == nil {
			return // its receive has failed meanwhile
		}
		op.N += copy(op.Buf[op.N:], payload)
		if f.Total == shmring.LastPart {
			p.incoming.Remove(op)
			m.complete(op, nil)
		}
	default:
		m.violated(p, fmt.Sprintf("frame of unknown kind %d", f.Kind))
	}
}

// byID returns the op of the message with a number, or nil.
func byID(l *transport.List, id uint64) *transport.Op {
	for op := l.Head; op != nil; op = op.State.Next {
		if op.State.Aux == id {
			return op
		}
	}
	return nil
}

// offerID is the number of a message that was offered, by which its receiver asks for it.
type offerID uint64

type early = transport.Early[offerID]
