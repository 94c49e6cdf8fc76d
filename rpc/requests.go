// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync/atomic"

	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/tensorpipe"
)

// requests is who reads the requests of a pipe that a peer opened: a goroutine that runs short handlers itself and, when
// one takes longer, another goroutine in its place. It does for a pipe what a link does for itself.
type requests struct {
	conn *conn
	turn atomic.Uint64
}

// Turn returns the number of the request that is being dispatched. It is odd then, and even between two requests.
func (q *requests) Turn() uint64 { return q.turn.Load() }

// Handover lets another goroutine read on while the request of that turn is dispatched, unless that has ended or another
// one reads already.
func (q *requests) Handover(turn uint64) {
	if turn%2 == 0 || !q.turn.CompareAndSwap(turn, turn+1) {
		return
	}
	if !q.conn.agent.own(func() { q.read(turn + 1) }) {
		q.ended(errClosed("agent"))
	}
}

// read reads requests, until the pipe ends or another goroutine reads on.
func (q *requests) read(turn uint64) {
	dispatching := false
	defer func() {
		if dispatching { // the handler has ended this goroutine
			q.Handover(turn + 1)
		}
	}()
	for {
		raw, err := q.conn.pipe.Recv(context.Background())
		if err != nil {
			q.ended(err)
			return
		}
		q.turn.Store(turn + 1)
		dispatching = true
		q.conn.received(raw)
		dispatching = false
		if turn += 2; !q.turn.CompareAndSwap(turn-1, turn) {
			return
		}
	}
}

// ended is called when the pipe has ended, or nobody reads it any more.
func (q *requests) ended(err error) {
	a := q.conn.agent
	a.connLost(q.conn, err)
	a.mu.Lock()
	delete(a.pipes, q.conn)
	a.mu.Unlock()
	_ = q.conn.pipe.Close()
}

// received dispatches a request of a PyTorch worker.
func (c *conn) received(raw *tensorpipe.Message) {
	if c.peer().worker < 0 { // a worker of a dynamic world becomes a member after its first calls
		c.from.Store(c.agent.sender(c.peer().name))
	}
	c.peer().stats.received(sizeOf(raw))
	kind, id, err := rpcwire.DecodeHead(raw)
	r := &request{conn: c, peer: c.peer(), id: uint64(id), kind: kind} //nolint:gosec // echoed as it came
	var m *rpcwire.Message
	if err == nil {
		m, err = rpcwire.Decode(raw)
	}
	if err != nil {
		raw.Release()
		r.refuse(err)
		return
	}
	c.peer().types.learn(m.Tensors)
	r.payload, r.tensors = m.Payload, m.Tensors
	r.inline = raw.Quiet && c.inline.Short()
	c.agent.dispatch(r)
}
