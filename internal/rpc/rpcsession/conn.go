// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// Frames of the agents on the cohort transport, beside PyTorch's message types.
const (
	frameCancel  cohortwire.Type = cohortwire.FirstAgentType     // the caller has given up the request with this id
	FrameControl cohortwire.Type = cohortwire.FirstAgentType + 1 // the control stream of references
)

// Conn is one session with a peer: a pipe for our requests, a pipe for the peer's requests, or a link for both.
type Conn struct {
	net    *Links
	from   atomic.Pointer[Peer] // a client may turn out to be a new member
	Pipe   *tensorpipe.Pipe
	Link   *cohortwire.Link
	at     string           // of a pipe for our requests: where the peer listens
	Inline *rpcslots.Inline // of a link, and of a pipe for the peer's requests

	enter   sync.Mutex // one goroutine at a time makes the session known
	entered atomic.Bool
	early   [][]byte // control frames of a worker that is not a member yet; guarded by enter

	Refusals refusals
	Fetches  atomic.Int64 // of the peer, that wait for their objects

	mu struct {
		sync.Mutex
		next    uint64
		calls   map[uint64]*Pending
		err     error
		serving map[uint64]context.CancelCauseFunc // requests under way, by id
		carried []carried                          // references in answers that may still be on their way
	}
}

// Reply is the answer to a request, or why there is none.
type Reply struct {
	Msg   *rpcwire.Message
	Frame *cohortwire.Frame // of a link: has the forks, and the epoch they belong to
	Wires []rrefcore.Wire   // the references that the request carried
	Due   time.Time         // when the request had to be answered; zero means at any time
	Err   error
}

// Pending is a request without answer. Exactly one of Ch and Fn is set.
type Pending struct {
	Ch chan Reply // has room for one
	Fn func(Reply)
	// RunsUserCode says that Fn may run code of the program, so that it is guarded as a handler is.
	RunsUserCode bool
	// NotUrgent says that no goroutine waits for the answer, or that it calls [Links.ReclaimReader]: where the
	// reader is offered the answer is read within two milliseconds, or by the next caller.
	NotUrgent bool
	// KeepAfterCancel says that an answer is wanted also when the sender gave up while the request was being written: a worker of
	// PyTorch's protocol cannot be notified.
	KeepAfterCancel bool
}

func (p *Pending) complete(r Reply) {
	if p.Ch != nil {
		failpoint.At("rpc.link.answer")
		p.Ch <- r
		return
	}
	p.Fn(r)
}

func newConn(n *Links, p *Peer, s *tensorpipe.Session) *Conn {
	c := &Conn{net: n, Pipe: s.Pipe, Link: s.Link}
	c.mu.calls, c.mu.serving = map[uint64]*Pending{}, map[uint64]context.CancelCauseFunc{}
	c.from.Store(p)
	p.Met.Store(true)
	if s.Link != nil {
		c.Inline = rpcslots.NewInline(s.Link, rpcslots.LinkGuard)
	}
	return c
}

// Peer returns the worker at the other side.
func (c *Conn) Peer() *Peer { return c.from.Load() }

// Rebind notes that p has announced on this session that it joins. Until then it was taken for the former worker of
// that name, if there was one.
func (c *Conn) Rebind(former, p *Peer) {
	if c != nil && c.from.CompareAndSwap(former, p) {
		p.openedPipe.Store(c.Pipe != nil)
	}
}

// Cohort reports whether the other side is a Go worker on the cohort transport.
func (c *Conn) Cohort() bool { return c.Link != nil }

// Alive reports whether requests can be sent. A link may have ended before its reader has reported it.
func (c *Conn) Alive() bool {
	if c.Link != nil {
		select {
		case <-c.Link.Done():
			return false
		default:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err == nil
}

// fail ends every call of the session.
func (c *Conn) fail(err error) {
	failpoint.At("rpc.link.fail")
	c.mu.Lock()
	if c.mu.err != nil {
		c.mu.Unlock()
		return
	}
	c.mu.err = err
	calls := c.mu.calls
	c.mu.calls = nil
	serving := c.mu.serving
	c.mu.serving = nil
	lost := c.mu.carried
	c.mu.carried = nil
	c.mu.Unlock()
	for _, p := range calls {
		p.complete(Reply{Err: err})
	}
	for _, cancel := range serving {
		cancel(err)
	}
	if c.Link != nil && c.Peer().ID >= 0 {
		for _, x := range lost {
			c.net.cfg.Handler.Undelivered(c.Peer(), x.wires)
		}
	}
}

// Unsent is the id of a request that was not sent, because the session had ended before.
const Unsent = math.MaxUint64

// Begin registers a request and sends it. wait is completed exactly once unless Begin returns an error or Forget reports
// true. deadline travels to a Go callee.
func (c *Conn) Begin(ctx context.Context, m *rpcwire.Message, wait *Pending, forks []cohortwire.Fork, flags uint8,
	deadline time.Time,
) (uint64, error) {
	failpoint.At("rpc.link.begin")
	c.mu.Lock()
	if c.mu.err != nil {
		err := c.mu.err
		c.mu.Unlock()
		return Unsent, err
	}
	id := c.mu.next
	c.mu.next++
	c.mu.calls[id] = wait
	c.mu.Unlock()
	m.ID = int64(id) //nolint:gosec // a counter
	size, err := c.Write(ctx, m, forks, flags, deadline)
	if err != nil && wait.KeepAfterCancel && c.Link == nil && ctx.Err() != nil && !errors.Is(err, tensorpipe.ErrUnsent) {
		return id, err // the rest of it is still written
	}
	if err != nil && c.Forget(id) {
		return id, err
	}
	if wait.Fn != nil && !wait.NotUrgent && c.Link != nil { // its answer is not read with Await
		c.Link.ReclaimReader()
	}
	c.Peer().Stats.sent(size)
	return id, nil
}

// Write sends a message over whichever wire the session has.
func (c *Conn) Write(ctx context.Context, m *rpcwire.Message, forks []cohortwire.Fork, flags uint8, deadline time.Time) (int, error) {
	if c.Link == nil {
		if err := c.Peer().types.check(m.Tensors, c.net.cfg.Types); err != nil {
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
		failpoint.At("rpc.link.send")
		if err = c.Pipe.Send(ctx, raw); err == nil && m.Written != nil {
			m.Written()
		}
		return size, err
	}
	var f cohortwire.Frame
	if err := m.ToFrame(&f); err != nil {
		return 0, err
	}
	f.Forks, f.Flags = forks, flags
	if !deadline.IsZero() {
		if f.Deadline = time.Until(deadline); f.Deadline <= 0 {
			return 0, cohort.New("rpc: send", cohort.DeadlineExceeded, "the deadline has passed")
		}
	}
	if m.Type == rpcwire.RemoteRet && c.Peer().Current() == c { // a caller that waits for it has it flushed: see rpcref.Refs.FlushNow
		failpoint.At("rpc.link.linger")
		return frameSize(&f), c.Link.PostDelayed(ctx, &f)
	}
	if !m.Type.IsRequest() { // a result is sent as it is while it is sent; its handler does not learn when that is
		failpoint.At("rpc.link.post")
		return frameSize(&f), c.Link.Post(ctx, &f)
	}
	if t := observe.Trace(ctx); t != "" {
		f.Trace = []byte(t)
	}
	failpoint.At("rpc.link.request")
	return frameSize(&f), c.Link.Request(ctx, &f)
}

// Forget gives a request up. It reports whether the request still waited: then it will not be completed.
func (c *Conn) Forget(id uint64) bool {
	failpoint.At("rpc.link.forget")
	c.mu.Lock()
	_, waiting := c.mu.calls[id]
	delete(c.mu.calls, id)
	c.mu.Unlock()
	return waiting
}

// Cancel notifies a Go callee that its caller does not wait any more.
//
//nolint:contextcheck,nolintlint // the caller's has ended
func (c *Conn) Cancel(id uint64) {
	if c.Link == nil {
		return
	}
	c.net.Background(func() {
		ctx, stop := context.WithTimeout(c.net.Context, time.Second)
		defer stop()
		failpoint.At("rpc.link.cancel")
		_ = c.Link.Send(ctx, &cohortwire.Frame{Type: frameCancel, ID: id})
	})
}

// ErrCallerCanceled is the cause of a handler's context when its caller waits no longer.
var ErrCallerCanceled = cohort.New("rpc: request", cohort.Canceled, "the caller has given up")

// Track makes a request of the peer cancellable: by its caller, or when the session ends.
func (c *Conn) Track(id uint64, cancel context.CancelCauseFunc) {
	failpoint.At("rpc.link.track")
	c.mu.Lock()
	if err := c.mu.err; err != nil {
		c.mu.Unlock()
		cancel(err)
		return
	}
	c.mu.serving[id] = cancel
	c.mu.Unlock()
}

// Untrack ends that.
func (c *Conn) Untrack(id uint64) {
	failpoint.At("rpc.link.untrack")
	c.mu.Lock()
	delete(c.mu.serving, id)
	c.mu.Unlock()
}

// canceledByCaller is called when the peer does not wait for an answer any more.
func (c *Conn) canceledByCaller(id uint64) {
	failpoint.At("rpc.link.given_up")
	c.mu.Lock()
	cancel := c.mu.serving[id]
	c.mu.Unlock()
	if cancel != nil {
		cancel(ErrCallerCanceled)
	}
}

// Severed reports whether a link has ended although both workers may live.
func (c *Conn) Severed() bool {
	if c.Link == nil || c.net.Context.Err() != nil {
		return false
	}
	select {
	case <-c.Link.Done():
		return cohort.CodeOf(c.Link.Err()) != cohort.Protocol
	default:
		return false
	}
}

// answered passes an answer to its request. It reports false when no caller waits.
func (c *Conn) answered(id uint64, r Reply) bool {
	failpoint.At("rpc.link.answered")
	c.mu.Lock()
	p := c.mu.calls[id]
	delete(c.mu.calls, id)
	c.mu.Unlock()
	if p == nil {
		return false
	}
	if c.Link != nil && p.Ch != nil && r.Frame != nil {
		c.Link.Answered(r.Frame)
	}
	if p.RunsUserCode && c.Inline != nil {
		c.Inline.Do(func() { p.complete(r) })
		return true
	}
	p.complete(r)
	return true
}

// Await reads the answer to a request of a waiting caller in its own goroutine, when the link offers its reader. Where it
// reports false the answer comes to the caller's channel.
func (c *Conn) Await(id uint64) (Reply, bool) {
	if c.Link == nil {
		return Reply{}, false
	}
	failpoint.At("rpc.link.await")
	f := c.Link.Await(id)
	if f == nil {
		return Reply{}, false
	}
	c.Peer().Stats.received(frameSize(f))
	m, err := rpcwire.DecodeFrame(f)
	if !c.Forget(id) { // the session has just ended, which the channel reports
		c.net.cfg.Handler.Discard(c, f)
		f.Release()
		return Reply{}, false
	}
	return Reply{Msg: m, Frame: f, Err: err}, true
}

// ReclaimReader makes sure that what arrives from a worker is read at once, and that what was delayed for it is sent.
func (n *Links) ReclaimReader(w rrefcore.Worker) {
	if p := n.PeerByID(w); p != nil {
		if c := p.Current(); c != nil && c.Link != nil {
			c.Link.ReclaimReader()
		}
	}
}

func frameSize(f *cohortwire.Frame) int {
	size := len(f.Prefix) + len(f.Payload)
	for _, s := range f.Storages {
		size += s.Len()
	}
	return size
}

// readAnswers is the reading goroutine of a pipe that we opened.
func (c *Conn) readAnswers() {
	for {
		failpoint.At("rpc.link.recv")
		raw, err := c.Pipe.Recv(context.Background())
		if err != nil {
			c.net.connLost(c, err)
			return
		}
		c.Peer().Stats.received(sizeOf(raw))
		kind, id, err := rpcwire.DecodeHead(raw)
		var m *rpcwire.Message
		if err == nil {
			m, err = rpcwire.Decode(raw)
		}
		if err != nil {
			raw.Release()
			c.net.cfg.Handler.DiscardAnswer(c.Peer(), &rpcwire.Message{Type: kind, Payload: unread(raw)})
		} else {
			c.Peer().types.learn(m.Tensors)
		}
		if !c.answered(uint64(id), Reply{Msg: m, Err: err}) && m != nil { //nolint:gosec // our own counter
			c.net.cfg.Handler.DiscardAnswer(c.Peer(), m) // the call was given up: its references are not wanted
		}
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

// carried are references in an answer. When the link ends soon after, it is unknown whether it arrived.
type carried struct {
	at    time.Time
	wires []rrefcore.Wire
}

// carriedTTL is how long a link can have swallowed an answer without being found dead, and maxCarried how many answers
// with references its buffers can hold.
const (
	carriedTTL = 30 * time.Second
	maxCarried = 64 << 10
)

// Carry remembers the references of an answer for as long as the link may have swallowed it.
func (c *Conn) Carry(wires []rrefcore.Wire) {
	now := time.Now()
	failpoint.At("rpc.link.carry")
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.mu.carried) > 0 && (now.Sub(c.mu.carried[0].at) > carriedTTL || len(c.mu.carried) >= maxCarried) {
		c.mu.carried = c.mu.carried[1:]
	}
	c.mu.carried = append(c.mu.carried, carried{now, wires})
}
