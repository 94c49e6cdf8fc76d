// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
	"github.com/cohort-dist/cohort/internal/tensorpipe"
)

// Frames of the agents on the cohort transport, beside PyTorch's message types.
const (
	frameCancel  cohortwire.Type = cohortwire.FirstAgentType     // the caller has given up the request with this id
	frameControl cohortwire.Type = cohortwire.FirstAgentType + 1 // the control stream of references
)

// conn is one session with a peer: a pipe for our requests, a pipe for the peer's requests, or a link for both.
type conn struct {
	agent  *Agent
	from   atomic.Pointer[peer] // a guest may turn out to be a new member
	pipe   *tensorpipe.Pipe
	link   *cohortwire.Link
	inline *rpcplace.Inline // of a link, and of a pipe for the peer's requests

	mu      sync.Mutex
	next    uint64
	calls   map[uint64]*pending
	err     error
	serving map[uint64]context.CancelCauseFunc // requests under way, by id
	carried []carried                          // references in answers that may still be on their way
	enter   sync.Mutex                         // one at a time makes the session known
	entered atomic.Bool
	early   [][]byte // control frames of a worker that is not a member yet; guarded by enter

	refusals refusals
	fetches  atomic.Int64 // of the peer, that wait for their objects
}

// reply is the answer to a request, or why there is none.
type reply struct {
	msg   *rpcwire.Message
	frame *cohortwire.Frame // of a link: has the forks, and the epoch they belong to
	wires []rrefcore.Wire   // the references that the request carried
	due   time.Time         // when the request had to be answered; zero means at any time
	err   error
}

// pending is a request without answer. Exactly one of ch and fn is set.
type pending struct {
	ch chan reply // has room for one
	fn func(reply)
	// late says that an answer is wanted also when the sender gave up while the request was being written: a worker of
	// PyTorch's protocol cannot be told.
	late bool
}

func (p *pending) complete(r reply) {
	if p.ch != nil {
		p.ch <- r
		return
	}
	p.fn(r)
}

func newConn(a *Agent, p *peer, s *tensorpipe.Session) *conn {
	c := &conn{agent: a, pipe: s.Pipe, link: s.Link, calls: map[uint64]*pending{}, serving: map[uint64]context.CancelCauseFunc{}}
	c.from.Store(p)
	p.met.Store(true)
	if s.Link != nil {
		c.inline = rpcplace.NewInline(s.Link, rpcplace.LinkGuard)
	}
	return c
}

// peer returns who is at the other side.
func (c *conn) peer() *peer { return c.from.Load() }

// cohort reports whether the other side is a Go worker on the cohort transport.
func (c *conn) cohort() bool { return c.link != nil }

// alive reports whether requests can be sent. A link may have ended before its reader has told us.
func (c *conn) alive() bool {
	if c.link != nil {
		select {
		case <-c.link.Done():
			return false
		default:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil
}

// fail ends every call of the session.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls := c.calls
	c.calls = nil
	serving := c.serving
	c.serving = nil
	lost := c.carried
	c.carried = nil
	c.mu.Unlock()
	for _, p := range calls {
		p.complete(reply{err: err})
	}
	for _, cancel := range serving {
		cancel(err)
	}
	if c.link != nil && c.peer().worker >= 0 {
		for _, x := range lost {
			c.agent.refs.undelivered(c.peer(), x.wires)
		}
	}
}

// unsent is the id of a request that was not sent, because the session had ended before.
const unsent = math.MaxUint64

// begin registers a request and sends it. wait is completed exactly once unless begin returns an error or forget reports
// true. deadline travels to a Go callee.
func (c *conn) begin(ctx context.Context, m *rpcwire.Message, wait *pending, forks []cohortwire.Fork, flags uint8, deadline time.Time) (uint64, error) {
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		return unsent, err
	}
	id := c.next
	c.next++
	c.calls[id] = wait
	c.mu.Unlock()
	m.ID = int64(id) //nolint:gosec // a counter
	size, err := c.write(ctx, m, forks, flags, deadline)
	if err != nil && wait.late && c.link == nil && ctx.Err() != nil && !errors.Is(err, tensorpipe.ErrUnsent) {
		return id, err // the rest of it is written all the same
	}
	if err != nil && c.forget(id) {
		return id, err
	}
	if wait.fn != nil && c.link != nil { // nobody reads its answer with await
		c.link.Recall()
	}
	c.peer().stats.sent(size)
	return id, nil
}

// write sends a message over whichever wire the session has.
func (c *conn) write(ctx context.Context, m *rpcwire.Message, forks []cohortwire.Fork, flags uint8, deadline time.Time) (int, error) {
	if c.link == nil {
		if err := c.peer().types.check(m.Tensors, c.agent.cfg.types); err != nil {
			return 0, err
		}
		raw, err := m.Encode()
		if err != nil {
			return 0, err
		}
		size := len(m.Payload)
		for _, s := range raw.Storages {
			size += s.Len()
		}
		if err = c.pipe.Send(ctx, raw); err == nil && m.Written != nil {
			m.Written()
		}
		return size, err
	}
	f, err := m.Frame()
	if err != nil {
		return 0, err
	}
	f.Forks, f.Flags = forks, flags
	if !deadline.IsZero() {
		if f.Deadline = time.Until(deadline); f.Deadline <= 0 {
			return 0, dist.New("rpc: send", dist.DeadlineExceeded, "the deadline has passed")
		}
	}
	size := frameSize(f)
	if !m.Type.IsRequest() { // a result is sent as it is while it is sent; whoever made it is not told when that is
		return size, c.link.Post(ctx, f)
	}
	return size, c.link.Request(ctx, f, true)
}

// forget gives a request up. It reports whether the request still waited: then it will not be completed.
func (c *conn) forget(id uint64) bool {
	c.mu.Lock()
	_, waiting := c.calls[id]
	delete(c.calls, id)
	c.mu.Unlock()
	return waiting
}

// cancel tells a Go callee that nobody waits any more.
//
//nolint:contextcheck,nolintlint // the caller's has ended
func (c *conn) cancel(id uint64) {
	if c.link == nil {
		return
	}
	c.agent.background(func() {
		ctx, stop := context.WithTimeout(c.agent.ctx, time.Second)
		defer stop()
		_ = c.link.Send(ctx, &cohortwire.Frame{Type: frameCancel, ID: id})
	})
}

// answered passes an answer to its request. It reports false when nobody waits.
func (c *conn) answered(id uint64, r reply) bool {
	c.mu.Lock()
	p := c.calls[id]
	delete(c.calls, id)
	c.mu.Unlock()
	if p == nil {
		return false
	}
	if c.link != nil && p.ch != nil && r.frame != nil {
		c.link.Answered(r.frame)
	}
	p.complete(r)
	return true
}

// await reads the answer to a request of a waiting caller in its own goroutine, when the link lends the reading. Where it
// reports false the answer comes to the caller's channel.
func (c *conn) await(id uint64) (reply, bool) {
	if c.link == nil {
		return reply{}, false
	}
	f := c.link.Await(id)
	if f == nil {
		return reply{}, false
	}
	c.peer().stats.received(frameSize(f))
	m, err := rpcwire.DecodeFrame(f)
	if !c.forget(id) { // the session has just ended, and the channel says so
		c.agent.refs.discard(c, f)
		f.Release()
		return reply{}, false
	}
	return reply{msg: m, frame: f, err: err}, true
}

// recall makes sure that what comes from a worker is heard at once, and what was held back for it leaves.
func (a *Agent) recall(w rrefcore.Worker) {
	if p := a.peerByID(w); p != nil {
		if c := p.current(); c != nil && c.link != nil {
			c.link.Recall()
		}
	}
}

func frameSize(f *cohortwire.Frame) int {
	size := len(f.Payload)
	for _, s := range f.Storages {
		size += s.Len()
	}
	return size
}

// readAnswers is the reading goroutine of a pipe that we opened.
func (c *conn) readAnswers() {
	for {
		raw, err := c.pipe.Recv(context.Background())
		if err != nil {
			c.agent.connLost(c, err)
			return
		}
		c.peer().stats.received(sizeOf(raw))
		_, id, err := rpcwire.DecodeHead(raw)
		var m *rpcwire.Message
		if err == nil {
			m, err = rpcwire.Decode(raw)
		}
		if err != nil {
			raw.Release()
		} else {
			c.peer().types.learn(m.Tensors)
		}
		c.answered(uint64(id), reply{msg: m, err: err}) //nolint:gosec // our own counter
	}
}

func sizeOf(m *tensorpipe.Message) int {
	n := 0
	for _, b := range m.Payloads {
		n += len(b)
	}
	for _, s := range m.Storages {
		n += s.Len()
	}
	return n
}

// carried are references in an answer. When the link ends soon after, nobody knows whether it arrived.
type carried struct {
	at    time.Time
	wires []rrefcore.Wire
}

// carriedFor is how long a link can have swallowed an answer without being found dead, and mostCarried how many answers
// with references its buffers can hold.
const (
	carriedFor  = 30 * time.Second
	mostCarried = 64 << 10
)

func (c *conn) carry(wires []rrefcore.Wire) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.carried) > 0 && (now.Sub(c.carried[0].at) > carriedFor || len(c.carried) >= mostCarried) {
		c.carried = c.carried[1:]
	}
	c.carried = append(c.carried, carried{now, wires})
}
