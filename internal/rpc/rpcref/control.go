// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// A control frame is
//
//	2 from, 2 to, 8 epoch of from, 8 epoch of to, 4 session, 8 floor, 8 first, 8 ack, 8 stamp, 8 echo, 4 number of messages
//
// and per message: 1 kind, with keyBit if a key is there, 1 code, 2 owner, 8 owner's epoch, then the ids of object, fork and
// root, and the key (16). An id is 1 byte that
// says what its epoch is (0 none, 1 the sender's, 2 the receiver's, 3 written out) or that the id is missing (4), 2 worker,
// 8 counter, and the epoch if it is written out. Integers are little-endian.
const (
	controlHead = 68
	messageHead = 12
	maxMessages = 1 << 16
	keyBit      = 0x80

	epochNone, epochSender, epochReceiver, epochGiven, idNone = 0, 1, 2, 3, 4
)

// appendControl appends a frame of the control stream.
func appendControl(b []byte, f rrefcore.Frame) []byte {
	le := binary.LittleEndian
	b = slices.Grow(b, controlHead+len(f.Msgs)*(messageHead+33+len(rrefcore.Key{})))
	b = le.AppendUint16(b, uint16(f.From)) //nolint:gosec // two's complement
	b = le.AppendUint16(b, uint16(f.To))   //nolint:gosec // two's complement
	b = le.AppendUint64(b, uint64(f.Epoch))
	b = le.AppendUint64(b, uint64(f.ToEpoch))
	b = le.AppendUint32(b, f.Session)
	b = le.AppendUint64(b, f.Floor)
	b = le.AppendUint64(b, f.First)
	b = le.AppendUint64(b, f.Ack)
	b = le.AppendUint64(b, uint64(f.Stamp))     //nolint:gosec // two's complement
	b = le.AppendUint64(b, uint64(f.Echo))      //nolint:gosec // two's complement
	b = le.AppendUint32(b, uint32(len(f.Msgs))) //nolint:gosec // bounded by the machine
	for _, m := range f.Msgs {
		kind := byte(m.Kind)
		if m.Key != (rrefcore.Key{}) {
			kind |= keyBit
		}
		b = append(b, kind, byte(m.Code))
		b = le.AppendUint16(b, uint16(m.Owner)) //nolint:gosec // two's complement
		b = le.AppendUint64(b, uint64(m.OwnerEpoch))
		for _, id := range [...]rrefcore.ID{m.ID, m.Fork, m.Root} {
			b = AppendID(b, id, f.Epoch, f.ToEpoch)
		}
		if kind&keyBit != 0 {
			b = append(b, m.Key[:]...)
		}
	}
	return b
}

// AppendID appends an id as control frames have it.
func AppendID(b []byte, id rrefcore.ID, sender, receiver rrefcore.Epoch) []byte {
	if id == (rrefcore.ID{}) {
		return append(b, idNone)
	}
	how := byte(epochGiven)
	switch id.Epoch {
	case 0:
		how = epochNone
	case sender:
		how = epochSender
	case receiver:
		how = epochReceiver
	}
	b = append(b, how)
	b = binary.LittleEndian.AppendUint16(b, uint16(id.On)) //nolint:gosec // two's complement
	b = binary.LittleEndian.AppendUint64(b, id.N)
	if how == epochGiven {
		b = binary.LittleEndian.AppendUint64(b, uint64(id.Epoch))
	}
	return b
}

func badControl(format string, args ...any) error {
	return cohort.Newf("rpc: control stream", cohort.Protocol, format, args...)
}

// parseControl decodes a frame of the control stream. Its messages are put into room, which may be nil.
func parseControl(b []byte, room []rrefcore.Message) (rrefcore.Frame, error) {
	le := binary.LittleEndian
	if len(b) < controlHead {
		return rrefcore.Frame{}, badControl("a frame of %d bytes", len(b))
	}
	f := rrefcore.Frame{
		From: rrefcore.Worker(le.Uint16(b)), To: rrefcore.Worker(le.Uint16(b[2:])), //nolint:gosec // two's complement
		Epoch: rrefcore.Epoch(le.Uint64(b[4:])), ToEpoch: rrefcore.Epoch(le.Uint64(b[12:])), Session: le.Uint32(b[20:]),
		Floor: le.Uint64(b[24:]), First: le.Uint64(b[32:]), Ack: le.Uint64(b[40:]),
		Stamp: time.Duration(le.Uint64(b[48:])), Echo: time.Duration(le.Uint64(b[56:])), //nolint:gosec // two's complement
	}
	n := le.Uint32(b[64:])
	b = b[controlHead:]
	if n > maxMessages || uint64(n)*(messageHead+3) > uint64(len(b)) {
		return f, badControl("%d messages in %d bytes", n, len(b))
	}
	f.Msgs = slices.Grow(room[:0], int(n))[:n]
	clear(f.Msgs)
	for i := range f.Msgs {
		if len(b) < messageHead {
			return f, badControl("message %d ends early", i)
		}
		m := &f.Msgs[i]
		keyed := b[0]&keyBit != 0
		m.Kind, m.Code = rrefcore.Kind(b[0]&^keyBit), rrefcore.Code(b[1])
		m.Owner, m.OwnerEpoch = rrefcore.Worker(le.Uint16(b[2:])), rrefcore.Epoch(le.Uint64(b[4:])) //nolint:gosec // two's complement
		b = b[messageHead:]
		for _, id := range [...]*rrefcore.ID{&m.ID, &m.Fork, &m.Root} {
			var err error
			if b, err = parseID(b, id, f.Epoch, f.ToEpoch); err != nil {
				return f, err
			}
		}
		if keyed {
			if len(b) < len(m.Key) {
				return f, badControl("the key of message %d ends early", i)
			}
			b = b[copy(m.Key[:], b):]
		}
		if m.Kind < rrefcore.ForkRequest || m.Kind > rrefcore.Withdraw {
			return f, badControl("message %d is of an unknown kind %d", i, m.Kind)
		}
	}
	if len(b) > 0 {
		return f, badControl("%d bytes too many", len(b))
	}
	return f, nil
}

func parseID(b []byte, id *rrefcore.ID, sender, receiver rrefcore.Epoch) ([]byte, error) {
	if len(b) < 1 {
		return nil, badControl("an id is missing")
	}
	how := b[0]
	b = b[1:]
	if how == idNone {
		return b, nil
	}
	if len(b) < 10 || how > epochGiven {
		return nil, badControl("an id of form %d in %d bytes", how, len(b))
	}
	id.On, id.N = rrefcore.Worker(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint64(b[2:]) //nolint:gosec // two's complement
	b = b[10:]
	switch how {
	case epochSender:
		id.Epoch = sender
	case epochReceiver:
		id.Epoch = receiver
	case epochGiven:
		if len(b) < 8 {
			return nil, badControl("an id without its epoch")
		}
		id.Epoch = rrefcore.Epoch(binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	return b, nil
}

// enqueue sends a control message to a PyTorch peer, one after the other per peer.
func (r *Refs) enqueue(to rrefcore.Worker, msg rrefcore.Message) {
	p := r.cfg.Net.PeerByID(to)
	if p == nil {
		r.cfg.Net.Background(func() { r.requestDone(to, msg, false) })
		return
	}
	q := of(p)
	q.control.Lock()
	q.control.queue = append(q.control.queue, msg)
	start := !q.control.running
	q.control.running = true
	q.control.Unlock()
	if start && !r.cfg.Net.Go(func() { r.sendControl(p) }) {
		q.control.Lock()
		q.control.running = false
		q.control.Unlock()
	}
}

func (r *Refs) requestDone(to rrefcore.Worker, msg rrefcore.Message, ok bool) {
	r.step(func(m *rrefcore.Machine) { m.RequestDone(to, msg, ok) })
}

// sendControl empties the queue of control messages to a PyTorch peer.
func (r *Refs) sendControl(p *rpcsession.Peer) {
	q := of(p)
	for {
		failpoint.At("rpc.refs.control")
		q.control.Lock()
		if len(q.control.queue) == 0 || r.cfg.Net.Context.Err() != nil {
			q.control.running = false
			q.control.Unlock()
			return
		}
		msg := q.control.queue[0]
		q.control.queue = q.control.queue[1:]
		q.control.Unlock()
		if err := r.sendOne(p, msg); err != nil {
			r.requestDone(p.ID, msg, false)
		}
	}
}

// controlLimit bounds a control message where calls have no limit. It is PyTorch's.
const controlLimit = 60 * time.Second

// sendOne sends a control message in the agent's own time and reports its fate later.
//
//nolint:contextcheck,nolintlint // not in that of the caller that closes a reference
func (r *Refs) sendOne(p *rpcsession.Peer, msg rrefcore.Message) error {
	m, err := controlMessage(msg)
	if err != nil {
		return err
	}
	limit := r.cfg.Limit()
	if limit <= 0 {
		limit = controlLimit
	}
	ctx, cancel := context.WithTimeout(r.cfg.Net.Context, limit)
	defer cancel()
	c, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	var timer *time.Timer
	var mu sync.Mutex
	done := false
	finish := func(ok bool) {
		failpoint.At("rpc.refs.control.done")
		mu.Lock()
		first := !done
		done = true
		if timer != nil {
			timer.Stop()
		}
		mu.Unlock()
		if first {
			r.requestDone(p.ID, msg, ok)
		}
	}
	id, err := c.Begin(ctx, m, &rpcsession.Pending{Fn: func(x rpcsession.Reply) {
		finish(x.Err == nil && x.Msg.Type != rpcwire.Exception)
	}}, nil, 0, time.Time{})
	if err != nil {
		return err
	}
	failpoint.At("rpc.refs.control.sent")
	mu.Lock()
	if !done {
		timer = time.AfterFunc(limit, func() {
			c.Forget(id)
			finish(false)
		})
	}
	mu.Unlock()
	return nil
}

// controlMessage is a control message in PyTorch's form.
func controlMessage(msg rrefcore.Message) (*rpcwire.Message, error) {
	pair := rpcwire.RRefPair{RRef: Global(msg.ID), Fork: Global(msg.Fork)}
	switch msg.Kind {
	case rrefcore.ForkRequest:
		payload, err := pair.Encode()
		return &rpcwire.Message{Type: rpcwire.RRefForkRequest, Payload: payload}, err
	case rrefcore.Delete:
		payload, err := pair.Encode()
		return &rpcwire.Message{Type: rpcwire.RRefUserDelete, Payload: payload}, err
	case rrefcore.ChildAccept:
		payload, err := rpcwire.EncodeForkID(pair.Fork)
		return &rpcwire.Message{Type: rpcwire.RRefChildAccept, Payload: payload}, err
	default:
		return nil, cohort.Newf("rpc: control message", cohort.Internal, "%v has no form on PyTorch's wire", msg.Kind)
	}
}

// TorchControl reads a control message in PyTorch's form.
func (r *Refs) TorchControl(kind rpcwire.Type, payload []byte) (msg rrefcore.Message, err error) {
	if kind == rpcwire.RRefChildAccept {
		var fork rpcwire.GlobalID
		fork, err = rpcwire.DecodeForkID(payload)
		msg.Kind, msg.Fork = rrefcore.ChildAccept, r.id(fork)
		return msg, err
	}
	var pair rpcwire.RRefPair
	pair, err = rpcwire.DecodeRRefPair(payload)
	msg.Kind, msg.ID, msg.Fork = rrefcore.Delete, r.id(pair.RRef), r.id(pair.Fork)
	if kind == rpcwire.RRefForkRequest {
		msg.Kind = rrefcore.ForkRequest
	}
	return msg, err
}

// Controlled performs a control message of a PyTorch worker.
func (r *Refs) Controlled(p *rpcsession.Peer, msg rrefcore.Message) {
	r.step(func(m *rrefcore.Machine) {
		r.known(p.ID)
		r.known(msg.ID.On) // its creating call may be on its way
		if !r.Former(p) {
			m.Control(p.ID, msg)
		}
	})
}
