// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

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
