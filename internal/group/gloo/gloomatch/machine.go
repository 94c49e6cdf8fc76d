// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gloomatch is gloo's message matching as a machine without I/O, goroutines or clocks.
//
// One [Machine] belongs to one context: the ranks that one device connects. Events go in through its methods (an op is
// posted or cancelled, a frame arrives, a peer is lost); what must happen comes out as [Effect] values (send this
// frame, this op is complete). A message travels in three steps: the sender announces it (SendReady), the receiver
// offers room (RecvReady), and only then the data is sent, so nothing is ever buffered for a receive that does not exist.
//
// This machine checks what gloo does not. The room that a peer offers bounds what is sent to it, because a PyTorch
// process that gets more aborts. Data that is longer than the room, or that was not requested, is a protocol error.
package gloomatch

import (
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// maxNotices bounds the announcements and offers of one peer that no local op has answered yet.
const maxNotices = 1 << 20

// Effect is something that the driver must do, in order. With a Frame the frame is sent to Peer, followed by Op.Buf when
// it is a Data frame, and Op is complete once its last byte was handed over. Without one, Op is complete with Err.
type Effect struct {
	Peer  int
	Frame gloowire.Frame
	Op    *transport.Op
	Err   error
}

// Emit reports whether the effect sends a frame.
func (e *Effect) Emit() bool { return e.Frame.Opcode != 0 }

// Machine matches the messages of one context. It is not safe for concurrent use.
type Machine struct {
	rank, size int
	pairs      map[pairKey]*pairSlot
	slots      map[uint64]*anySlot
	lost       []error
	notices    []int
	failed     error

	// Effects are what the calls since the last reset ask for. The driver carries them out and resets the slice.
	Effects []Effect

	freePairs []*pairSlot
	freeSlots []*anySlot
}

// New returns the machine of one rank.
func New(rank, size int) *Machine {
	return &Machine{
		rank: rank, size: size, pairs: map[pairKey]*pairSlot{}, slots: map[uint64]*anySlot{},
		lost: make([]error, size), notices: make([]int, size),
	}
}

type pairKey struct {
	slot uint64
	peer int
}

// pairSlot is the state of one slot towards one peer.
type pairSlot struct {
	sends transport.List // announced to the peer, waiting for its room
	recvs transport.List // offered to the peer; those that it announced a message for come first
	// owed counts the tail of recvs that the peer has not announced a message for.
	owed int
	// waiting counts the peer's announcements that no receive has taken. They stand in anySlot.arrivals, too.
	waiting int
	// rooms are the peer's offers that no send has used, oldest first.
	rooms []uint64
	// spare counts announcements of ours whose send was withdrawn: the next send uses them up.
	spare int
	// staleMembers counts entries of recvs whose receive was withdrawn.
	staleMembers int
}

func (p *pairSlot) idle() bool {
	return p.sends.Head == nil && p.recvs.Head == nil && p.waiting == 0 && len(p.rooms) == 0 && p.spare == 0
}

// anySlot is the state of one slot that spans peers.
type anySlot struct {
	arrivals []int          // ranks with an unanswered announcement, in order of arrival
	parked   transport.List // receives from any rank that wait for an announcement
}

// The bits of Op.State.Aux.
const (
	isSend uint64 = 1 << iota
	isGhost
)

func isWithdrawn(op *transport.Op) bool { return op.State.Aux&isGhost != 0 }

func (m *Machine) pair(slot uint64, peer int) *pairSlot {
	key := pairKey{slot, peer}
	p := m.pairs[key]
	if p == nil {
		if n := len(m.freePairs); n > 0 {
			p, m.freePairs = m.freePairs[n-1], m.freePairs[:n-1]
		} else {
			p = &pairSlot{}
		}
		m.pairs[key] = p
	}
	return p
}

func (m *Machine) settlePair(slot uint64, peer int, p *pairSlot) {
	if p.idle() {
		delete(m.pairs, pairKey{slot, peer})
		*p = pairSlot{rooms: p.rooms[:0]}
		m.freePairs = append(m.freePairs, p)
	}
}

func (m *Machine) anySlot(slot uint64) *anySlot {
	s := m.slots[slot]
	if s == nil {
		if n := len(m.freeSlots); n > 0 {
			s, m.freeSlots = m.freeSlots[n-1], m.freeSlots[:n-1]
		} else {
			s = &anySlot{}
		}
		m.slots[slot] = s
	}
	return s
}

func (m *Machine) settleAny(slot uint64, s *anySlot) {
	if len(s.arrivals) == 0 && s.parked.Head == nil {
		delete(m.slots, slot)
		*s = anySlot{arrivals: s.arrivals[:0]}
		m.freeSlots = append(m.freeSlots, s)
	}
}

func (m *Machine) emit(peer int, op gloowire.Opcode, slot uint64, length int, data *transport.Op) {
	//nolint:gosec // a buffer's length
	m.Effects = append(m.Effects, Effect{Peer: peer, Frame: gloowire.Frame{Opcode: op, Slot: slot, Length: uint64(length)}, Op: data})
}

func (m *Machine) complete(op *transport.Op, err error) {
	m.Effects = append(m.Effects, Effect{Op: op, Err: err})
}

// refused returns why an op towards peer cannot be posted.
func (m *Machine) refused(verb string, peer int) error {
	switch {
	case m.failed != nil:
		return m.failed
	case peer < 0 || peer >= m.size || peer == m.rank:
		return cohort.Newf("gloo: "+verb, cohort.InvalidArgument, "rank %d cannot exchange messages with rank %d of %d", m.rank,
			peer, m.size)
	}
	return m.lost[peer]
}

// Send posts a send.
func (m *Machine) Send(op *transport.Op) {
	if err := m.refused("send", op.Peer); err != nil {
		m.complete(op, err)
		return
	}
	op.State.Aux = isSend
	p := m.pair(op.Slot, op.Peer)
	if len(p.rooms) > 0 && p.sends.Head == nil {
		if room := p.rooms[0]; uint64(len(op.Buf)) > room {
			m.complete(op, tooLong(op, room))
			return
		}
	}
	if p.spare > 0 {
		p.spare--
	} else {
		m.emit(op.Peer, gloowire.SendReady, op.Slot, len(op.Buf), nil)
	}
	if len(p.rooms) == 0 {
		p.sends.Push(op)
		return
	}
	p.rooms = slices.Delete(p.rooms, 0, 1)
	m.notices[op.Peer]--
	m.emit(op.Peer, gloowire.Data, op.Slot, len(op.Buf), op)
	m.settlePair(op.Slot, op.Peer, p)
}

// tooLong is the error of a send that its receiver has no room for. It is not sent, because gloo would abort.
func tooLong(op *transport.Op, room uint64) error {
	e := cohort.Newf("gloo: send", cohort.Mismatch,
		"a message of %d bytes for a receive of %d bytes was not sent: do all ranks call the same operation with the same sizes?",
		len(op.Buf), room)
	e.Rank = cohort.Rank(op.Peer)
	return e
}

// Recv posts a receive, from op.Peer or from any of op.From (all other ranks if it is empty).
func (m *Machine) Recv(op *transport.Op) {
	if op.Peer == transport.AnyPeer {
		m.recvAny(op)
		return
	}
	if err := m.refused("receive", op.Peer); err != nil {
		m.complete(op, err)
		return
	}
	p := m.pair(op.Slot, op.Peer)
	if p.staleMembers > 0 { // the peer still has the offer of a withdrawn receive
		p.recvs.Replace(p.recvs.First(isWithdrawn), op)
		p.staleMembers--
		return
	}
	if p.waiting > 0 {
		m.take(op.Slot, op.Peer, p)
	} else {
		p.owed++
	}
	p.recvs.Push(op)
	m.emit(op.Peer, gloowire.RecvReady, op.Slot, len(op.Buf), nil)
}

// take removes the oldest announcement of peer.
func (m *Machine) take(slot uint64, peer int, p *pairSlot) {
	p.waiting--
	m.notices[peer]--
	s := m.slots[slot]
	i := slices.Index(s.arrivals, peer)
	s.arrivals = slices.Delete(s.arrivals, i, i+1)
	m.settleAny(slot, s)
}

func (m *Machine) recvAny(op *transport.Op) {
	if m.failed != nil {
		m.complete(op, m.failed)
		return
	}
	for _, peer := range op.From {
		if peer < 0 || peer >= m.size || peer == m.rank {
			m.complete(op, cohort.Newf("gloo: receive", cohort.InvalidArgument, "rank %d cannot receive from rank %d of %d",
				m.rank, peer, m.size))
			return
		}
	}
	s := m.anySlot(op.Slot)
	for _, peer := range s.arrivals {
		if op.Accepts(peer) {
			p := m.pair(op.Slot, peer)
			m.take(op.Slot, peer, p)
			m.offer(op, peer, p)
			return
		}
	}
	if err := m.allLost(op); err != nil {
		m.settleAny(op.Slot, s)
		m.complete(op, err)
		return
	}
	s.parked.Push(op)
}

// offer makes a receive from any rank a receive from peer, which has announced a message that no other receive takes.
func (m *Machine) offer(op *transport.Op, peer int, p *pairSlot) {
	op.Source = peer
	p.recvs.Push(op)
	m.emit(peer, gloowire.RecvReady, op.Slot, len(op.Buf), nil)
}

// allLost returns an error if no rank that op may receive from is left.
func (m *Machine) allLost(op *transport.Op) error {
	var last error
	for peer, err := range m.lost {
		if peer == m.rank || !op.Accepts(peer) {
			continue
		}
		if err == nil {
			return nil
		}
		last = err
	}
	if last == nil {
		last = cohort.New("gloo: receive", cohort.InvalidArgument, "no other rank to receive from")
	}
	return last
}

// Cancel withdraws a send that its receiver has not offered room for, or a receive that no sender has announced a
// message for, and reports whether it did.
//
// The peer already knows of the op. A withdrawn send's announcement is used by the next send on its slot. A withdrawn
// receive's offer is used by the next receive on its slot; a message that comes before that is dropped.
func (m *Machine) Cancel(op *transport.Op) bool {
	if op.Completed() {
		return false
	}
	if op.State.Aux&isSend == 0 && op.Peer == transport.AnyPeer {
		s := m.slots[op.Slot]
		if s == nil || !s.parked.Remove(op) {
			return false
		}
		m.settleAny(op.Slot, s)
		m.complete(op, cohort.New("gloo: receive", cohort.Aborted, "withdrawn"))
		return true
	}
	p := m.pairs[pairKey{op.Slot, op.Peer}]
	if p == nil {
		return false
	}
	if op.State.Aux&isSend != 0 {
		if !p.sends.Remove(op) {
			return false
		}
		p.spare++
		m.complete(op, cohort.New("gloo: send", cohort.Aborted, "withdrawn"))
		return true
	}
	if at := p.recvs.Index(op); at < 0 || at < p.recvs.Len-p.owed {
		return false
	}
	ghost := &transport.Op{}
	ghost.State.Aux = isGhost
	p.recvs.Replace(op, ghost)
	p.staleMembers++
	m.complete(op, cohort.New("gloo: receive", cohort.Aborted, "withdrawn"))
	return true
}

// Frame takes a frame of peer. For a Data frame it returns the op whose buffer takes the payload, which the driver
// completes after reading it; nil means that the payload is to be read and dropped. After an error the stream cannot be
// followed any further: the driver must report the peer as lost.
func (m *Machine) Frame(peer int, f gloowire.Frame) (*transport.Op, error) {
	if m.failed != nil {
		return nil, nil //nolint:nilerr // the peer does not know yet: what it sends now is not a protocol error
	}
	switch f.Opcode {
	case gloowire.RecvReady:
		return nil, m.onRoom(peer, f)
	case gloowire.SendReady:
		return nil, m.onAnnouncement(peer, f)
	case gloowire.Data:
		return m.onData(peer, f)
	case gloowire.SendBuffer, gloowire.NoticeOpcode:
	}
	return nil, nil // gloo ignores what it does not know
}

func (m *Machine) onRoom(peer int, f gloowire.Frame) error {
	p := m.pair(f.Slot, peer)
	for p.sends.Head != nil {
		op := p.sends.Pop()
		if uint64(len(op.Buf)) <= f.Length {
			m.emit(peer, gloowire.Data, f.Slot, len(op.Buf), op)
			m.settlePair(f.Slot, peer, p)
			return nil
		}
		p.spare++
		m.complete(op, tooLong(op, f.Length))
	}
	p.rooms = append(p.rooms, f.Length)
	return m.noticed(peer)
}

func (m *Machine) onAnnouncement(peer int, f gloowire.Frame) error {
	p := m.pair(f.Slot, peer)
	if p.owed > 0 {
		p.owed--
		return nil
	}
	if s := m.slots[f.Slot]; s != nil {
		for op := s.parked.Head; op != nil; op = op.State.Next {
			if op.Accepts(peer) {
				s.parked.Remove(op)
				m.settleAny(f.Slot, s)
				m.offer(op, peer, p)
				return nil
			}
		}
	}
	p.waiting++
	s := m.anySlot(f.Slot)
	s.arrivals = append(s.arrivals, peer)
	return m.noticed(peer)
}

func (m *Machine) noticed(peer int) error {
	if m.notices[peer]++; m.notices[peer] > maxNotices {
		return cohort.Newf("gloo: read frame", cohort.Exhausted,
			"more than %d messages were announced or asked for that this rank did not post", maxNotices)
	}
	return nil
}

func (m *Machine) onData(peer int, f gloowire.Frame) (*transport.Op, error) {
	p := m.pairs[pairKey{f.Slot, peer}]
	if p == nil || p.recvs.Len == p.owed {
		return nil, cohort.Newf("gloo: read frame", cohort.Protocol, "a message of %d bytes on slot %#x that was not asked for",
			f.Length, f.Slot)
	}
	op := p.recvs.Head
	if op.State.Aux&isGhost != 0 {
		p.recvs.Pop()
		p.staleMembers--
		m.settlePair(f.Slot, peer, p)
		return nil, nil
	}
	if f.Length > uint64(len(op.Buf)) {
		return nil, cohort.Newf("gloo: read frame", cohort.Protocol,
			"a message of %d bytes on slot %#x for a receive of %d bytes: do all ranks call the same operation with the same "+
				"sizes?", f.Length, f.Slot, len(op.Buf))
	}
	p.recvs.Pop()
	m.settlePair(f.Slot, peer, p)
	op.N, op.Source = int(f.Length), peer //nolint:gosec // at most len(op.Buf)
	return op, nil
}

// Lost ends every op that needs peer, now and later, with err.
func (m *Machine) Lost(peer int, err error) {
	if m.lost[peer] != nil || m.failed != nil {
		return
	}
	m.lost[peer] = err
	for key, p := range m.pairs {
		if key.peer != peer {
			continue
		}
		m.drop(p, err)
		delete(m.pairs, key)
	}
	for slot, s := range m.slots {
		s.arrivals = slices.DeleteFunc(s.arrivals, func(r int) bool { return r == peer })
		for op := s.parked.Head; op != nil; {
			next := op.State.Next
			if op.Accepts(peer) && m.allLost(op) != nil {
				s.parked.Remove(op)
				m.complete(op, err)
			}
			op = next
		}
		m.settleAny(slot, s)
	}
	m.notices[peer] = 0
}

// PeerError returns why peer is lost, or nil.
func (m *Machine) PeerError(peer int) error { return m.lost[peer] }

// Err returns why the machine failed, or nil.
func (m *Machine) Err() error { return m.failed }

// Pending reports whether an op waits for peer.
func (m *Machine) Pending(peer int) bool {
	for key, p := range m.pairs {
		if key.peer == peer && (p.sends.Head != nil || p.recvs.Len > p.staleMembers) {
			return true
		}
	}
	return false
}

// Fail ends every op, now and later, with err. The first call wins.
func (m *Machine) Fail(err error) {
	if m.failed != nil {
		return
	}
	m.failed = err
	for _, p := range m.pairs {
		m.drop(p, err)
	}
	for _, s := range m.slots {
		for s.parked.Head != nil {
			m.complete(s.parked.Pop(), err)
		}
	}
	clear(m.pairs)
	clear(m.slots)
}

func (m *Machine) drop(p *pairSlot, err error) {
	for p.sends.Head != nil {
		m.complete(p.sends.Pop(), err)
	}
	for p.recvs.Head != nil {
		if op := p.recvs.Pop(); op.State.Aux&isGhost == 0 {
			m.complete(op, err)
		}
	}
}

// Idle reports whether nothing is left to match: no op is posted and no peer waits for one.
func (m *Machine) Idle() bool { return len(m.pairs) == 0 && len(m.slots) == 0 }
