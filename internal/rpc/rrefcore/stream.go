// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

// streamLimit bounds the control messages that wait for a peer's acknowledgement. A peer that far behind is dead.
const streamLimit = 1 << 20

// frameLimit bounds the messages of one frame.
const frameLimit = 4096

// stream is the ordered, deduplicated control traffic with one Cohort peer, both directions.
type stream struct {
	queue   []Message // not acknowledged; queue[0] has number base
	base    uint64
	sent    int // how many of queue were sent at least once
	sentAt  Time
	expect  uint64 // the number of the next message to come
	owesAck bool
	stamp   Time // the newest stamp of the peer
}

func (s *stream) push(msg Message) { s.queue = append(s.queue, msg) }

// Frame returns what should go to a Cohort peer now: new messages, or an acknowledgement that is owed. ok is false when
// there is nothing to send.
func (m *Machine) Frame(to Worker) (f Frame, ok bool) { return m.FrameIn(to, nil) }

// FrameIn is [Machine.Frame] that puts the messages into room.
func (m *Machine) FrameIn(to Worker, room []Message) (f Frame, ok bool) {
	p := m.peers[to]
	if p == nil || p.kind != Cohort {
		return Frame{}, false
	}
	s := &p.stream
	if s.sent >= len(s.queue) && !s.owesAck {
		return Frame{}, false
	}
	return m.frame(p, s.sent, room), true
}

// frame builds a frame with the queued messages from the given index on, which are put into room.
func (m *Machine) frame(p *peer, from int, room []Message) Frame {
	s := &p.stream
	end := min(len(s.queue), from+frameLimit)
	f := Frame{
		From: m.self, To: p.id, Epoch: m.epoch, ToEpoch: p.epoch, Session: p.session, Floor: p.floor,
		First: s.base + uint64(from), Ack: s.expect, //nolint:gosec // an index of the queue
		Stamp: m.now, Echo: s.stamp, Msgs: append(room[:0], s.queue[from:end]...),
	}
	s.sent, s.sentAt, s.owesAck = max(s.sent, end), m.now, false
	p.lease.lastSentAt = m.now
	return f
}

// Resend makes every unacknowledged message to a peer be sent again: its connection was replaced.
func (m *Machine) Resend(to Worker) {
	if p := m.peers[to]; p != nil && p.kind == Cohort && len(p.stream.queue) > 0 {
		p.stream.sent = 0
		m.emit(Effect{Kind: Flush, To: to})
	}
}

// ReceiveFrame handles a frame of a Cohort peer.
func (m *Machine) ReceiveFrame(f Frame) {
	p := m.peers[f.From]
	if p == nil || (p.epoch != f.Epoch && f.Epoch != 0) {
		if p != nil && p.epoch != 0 && p.endedLives[f.Epoch] {
			return // a message of a former life
		}
		m.AddPeer(f.From, Cohort, f.Epoch)
		p = m.peers[f.From]
	}
	p.kind = Cohort
	if f.ToEpoch != 0 && f.ToEpoch != m.epoch {
		return // meant for a former life of this worker
	}
	switch {
	case f.Session < p.session:
		m.oweAck(p) // it was given up for dead: it learns that, and nothing it says of then counts
		return
	case f.Session > p.session:
		m.startSession(p, f.Session)
		p.announced = max(p.announced, f.Floor)
		m.revisitOf(p.id)
	case p.lease.state == dead:
		p.lease = newLease(m.now) // it knows that everything was forgotten: a fresh start
	}
	p.lease.heard(m.now, f.Echo)
	p.announced = max(p.announced, f.Floor)
	p.stream.stamp = max(p.stream.stamp, f.Stamp)
	m.acknowledge(p, f.Ack)
	for i, msg := range f.Msgs {
		if f.First+uint64(i) == p.stream.expect {
			p.stream.expect++
			m.handle(p, msg)
		}
	}
	if len(f.Msgs) > 0 {
		m.oweAck(p)
	}
}

func (m *Machine) oweAck(p *peer) {
	if !p.stream.owesAck {
		p.stream.owesAck = true
		m.emit(Effect{Kind: Flush, To: p.id, Late: true})
	}
}

// acknowledge drops the messages that have arrived at the peer.
func (m *Machine) acknowledge(p *peer, ack uint64) {
	s := &p.stream
	if ack <= s.base || ack > s.base+uint64(len(s.queue)) {
		return
	}
	n := int(ack - s.base) //nolint:gosec // at most the length of the queue
	if rest := len(s.queue) - n; rest <= n {
		s.queue = s.queue[:copy(s.queue, s.queue[n:])] // frames are copies, so the room can be used again
	} else {
		s.queue = s.queue[n:]
	}
	s.base = ack
	s.sent = max(0, s.sent-n)
}
