// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// requestReader reads the requests of a pipe that a peer opened: a goroutine that runs short handlers itself and, when
// one takes longer, another goroutine in its place. It does for a pipe what a link does for itself.
type requestReader struct {
	conn *Conn
	turn atomic.Uint64
}

// Turn returns the number of the request that is being dispatched. It is odd then, and even between two requests.
func (q *requestReader) Turn() uint64 { return q.turn.Load() }

// Handover lets another goroutine read on while the request of that turn is dispatched, unless that has ended or another
// one reads already.
func (q *requestReader) Handover(turn uint64) {
	if turn%2 == 0 || !q.turn.CompareAndSwap(turn, turn+1) {
		return
	}
	if !q.conn.net.Go(func() { q.read(turn + 1) }) {
		q.closed(ErrClosed("agent"))
	}
}

// read reads requests, until the pipe ends or another goroutine reads on.
func (q *requestReader) read(turn uint64) {
	dispatching := false
	defer func() {
		if dispatching { // the handler has ended this goroutine
			q.Handover(turn + 1)
		}
	}()
	for {
		failpoint.At("rpc.link.requests")
		raw, err := q.conn.Pipe.Recv(context.Background())
		if err != nil {
			q.closed(err)
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

// closed is called when the pipe has ended, or is not read any more.
func (q *requestReader) closed(err error) {
	n := q.conn.net
	n.connLost(q.conn, err)
	failpoint.At("rpc.link.ended")
	n.mu.Lock()
	delete(n.mu.pipes, q.conn)
	n.mu.Unlock()
	_ = q.conn.Pipe.Close()
}

// RequestPipesClosed reports whether all pipes for requests of a worker are closed, after there was one. A PyTorch
// worker never opens another.
func (n *Links) RequestPipesClosed(w rrefcore.Worker) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.mu.byID[w]
	if p == nil || !p.openedPipe.Load() {
		return false
	}
	for c := range n.mu.pipes {
		if c.Peer() == p {
			return false
		}
	}
	return true
}

// received dispatches a request of a PyTorch worker.
func (c *Conn) received(raw *tensorpipe.Message) {
	if c.Peer().ID < 0 { // a worker of a dynamic world becomes a member after its first calls
		p := c.net.sender(c.Peer().Name)
		c.from.Store(p)
		p.openedPipe.Store(true) // not before: see RequestPipesClosed
	}
	c.Peer().Stats.received(sizeOf(raw))
	kind, id, err := rpcwire.DecodeHead(raw)
	in := Incoming{Conn: c, Peer: c.Peer(), ID: uint64(id), Kind: kind} //nolint:gosec // echoed as it came
	var m *rpcwire.Message
	if err == nil {
		m, err = rpcwire.Decode(raw)
	}
	if err != nil {
		raw.Release()
		in.Err, in.Payload = err, unread(raw)
	} else {
		c.Peer().types.learn(m.Tensors)
		in.Payload, in.Tensors = m.Payload, m.Tensors
		in.Inline = raw.BufferEmpty && c.Inline.Short()
	}
	c.net.cfg.Handler.Request(in)
}

// unread returns the payload of a message that cannot be decoded, nil without one: it may contain references, see [rpcwire.Forks].
func unread(raw *tensorpipe.Message) []byte {
	if len(raw.Payloads) != tensorpipe.RPCPayloads {
		return nil
	}
	return raw.Payloads[2]
}

// maxRefusals is how many requests of a peer may wait for the answer that they were refused. A peer that sends more of
// them and does not read the answers loses its connection.
const maxRefusals = 4096

// refusals are the answers to refused requests of one session that have not been written. One goroutine writes them, however
// many there are, so that bad requests cost no goroutine each; it ends when there are none.
type refusals struct {
	mu struct {
		sync.Mutex
		queue   []func()
		running bool
		cut     bool
	}
}

// Add queues an answer. It does not block.
func (q *refusals) Add(c *Conn, answer func()) {
	failpoint.At("rpc.refusals.add")
	if next := q.queued(c, answer); next != nil {
		c.net.Background(next)
	}
}

// queued queues an answer, and returns what has to be started for it.
func (q *refusals) queued(c *Conn, answer func()) (start func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.mu.queue) < maxRefusals:
		q.mu.queue = append(q.mu.queue, answer)
		if !q.mu.running {
			start, q.mu.running = q.drain, true
		}
	case !q.mu.cut:
		start, q.mu.cut = c.cut, true
	}
	return start
}

func (q *refusals) drain() {
	for {
		failpoint.At("rpc.refusals.drain")
		q.mu.Lock()
		all := q.mu.queue
		q.mu.queue = nil
		q.mu.running = len(all) > 0
		q.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for _, answer := range all {
			answer()
		}
	}
}

// cut ends the session with a peer that does not read.
func (c *Conn) cut() {
	err := cohort.Newf("rpc: request", cohort.Exhausted, "%d requests were refused and the peer does not read why", maxRefusals)
	c.net.cfg.Logger.Warn("connection cut", slog.String("peer", c.Peer().Name), slog.String("err", err.Error()))
	if c.Link != nil {
		_ = c.Link.Close()
		return
	}
	_ = c.Pipe.Close()
}
