// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"strconv"
	"time"
)

// Kind is the kind of a control message.
type Kind uint8

// The control messages. The first three exist on PyTorch's wire too. The numbers are part of the wire among Go workers.
const (
	ForkRequest Kind = 1 + iota // child to owner: register Fork of ID
	ChildAccept                 // child to parent: Fork is safe, unpin
	Delete                      // user to owner: Fork of ID has ended
	ForkReply                   // owner to child: the answer to ForkRequest, with a Code
	Announce                    // creator to owner: a call that creates ID with root Fork follows
	Created                     // owner to creator: the call has arrived, the entry exists
	Cancel                      // creator to owner: forget the creation of ID
	Handoff                     // parent to child: a message carries Fork of ID to you
	Withdraw                    // parent to child: the message with Fork will not arrive
	kindCount
)

var kindNames = [kindCount]string{
	ForkRequest: "fork-request", ChildAccept: "child-accept", Delete: "delete", ForkReply: "fork-reply", Announce: "announce",
	Created: "created", Cancel: "cancel", Handoff: "handoff", Withdraw: "withdraw",
}

// String returns the kind's name.
func (k Kind) String() string {
	if k > 0 && k < kindCount {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Code says why a reference failed or a request was refused. Codes travel among Go workers.
type Code uint8

// The codes.
const (
	OK             Code = iota
	Gone                // the object existed and was freed
	Cancelled           // its creation was cancelled
	LeaseExpired        // the owner had to assume that this worker is dead
	OwnerLost           // the owner's process is gone
	OwnerRestarted      // another process has the owner's name now
	CreateFailed        // the creating call failed
	TimedOut            // the creating call was not confirmed in time
	Closed              // the user closed the reference
	PeerDead            // the worker to share with is known to be dead
	Withdrawn           // the message that carried the reference was given up by its sender
	CreatorLost         // the creator died before its call arrived, so there never will be a value
	codeCount
)

var codeNames = [codeCount]string{
	"ok", "the object is gone", "its creation was cancelled", "the lease has expired", "the owner is lost",
	"the owner was restarted", "its creation failed", "its creation timed out", "the reference was closed",
	"the worker is dead", "the hand-off was withdrawn", "its creator was lost before the object was made",
}

// String returns the code in plain words.
func (c Code) String() string {
	if c < codeCount {
		return codeNames[c]
	}
	return "code " + strconv.Itoa(int(c))
}

// Message is one control message. Unused fields are zero.
type Message struct {
	Kind  Kind
	ID    ID // the object
	Fork  ID // the fork it is about
	Root  ID // the creator's fork of the object
	Owner Worker
	// OwnerEpoch is the life of the owner that has the object: its successor knows nothing of it.
	OwnerEpoch Epoch
	Code       Code
	// Key is set by an Announce, passed on by a Handoff and shown by a ForkRequest.
	Key Key
}

// Frame is what goes to a Cohort peer in one piece: an acknowledgement and the messages First, First+1, ... of the
// stream. A frame without messages is a heartbeat.
type Frame struct {
	From    Worker
	To      Worker
	Epoch   Epoch // of the sender
	ToEpoch Epoch // of the receiver, as the sender knows it; 0 when it does not yet
	// Session counts how often one side had to give the other up for dead. A frame of an older session is void; one of
	// a newer session says that everything between the two workers has been forgotten.
	Session uint32
	// Floor is the sender's counter at the beginning of the session: its older objects were forgotten with the old one.
	Floor uint64
	First uint64
	Ack   uint64 // every message before this one has arrived
	Stamp Time   // the sender's clock
	Echo  Time   // the newest Stamp that the sender has seen from the receiver
	Msgs  []Message
}

// Worker is the id of a worker in its world. It is 16 bits wide on PyTorch's wire.
type Worker int16

// Epoch tells one life of a worker from another. Zero stands for a PyTorch process, which has none.
type Epoch uint64

// ID names an object or a fork: the worker that made it and that worker's counter. One counter makes both kinds, so an
// ID is unique in its world and, thanks to the epoch, across restarts.
type ID struct {
	On    Worker
	N     uint64
	Epoch Epoch
}

// String writes the id as PyTorch does in its leak report.
func (id ID) String() string {
	b := make([]byte, 0, 64) // not with fmt: every fetch has a name
	b = append(strconv.AppendInt(append(b, "GloballyUniqueId(created_on="...), int64(id.On), 10), ", local_id="...)
	return string(append(strconv.AppendUint(b, id.N, 10), ')'))
}

// Less orders ids, so that effects come out in the same order in every run.
func (id ID) Less(other ID) bool {
	if id.On != other.On {
		return id.On < other.On
	}
	if id.Epoch != other.Epoch {
		return id.Epoch < other.Epoch
	}
	return id.N < other.N
}

// life is one process: a worker and its epoch.
type life struct {
	worker Worker
	epoch  Epoch
}

// Time is what the driver's monotonic clock says. Only differences matter.
type Time = time.Duration

// PeerKind says which protocol a peer speaks.
type PeerKind uint8

// The kinds of peers.
const (
	PyTorch PeerKind = iota // single acknowledged requests, no epochs, no heartbeats
	Cohort                  // the extended protocol on an ordered stream
)

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
