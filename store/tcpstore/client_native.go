// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/ilist"
)

const (
	// maxQueued is how many bytes may wait for a slow connection before further calls wait with them.
	maxQueued = 4 << 20
	// maxAbandoned is how many calls may have been given up without an answer before the server counts as hung.
	maxAbandoned = 4096
	// unwatchedTime is how late a call may notice that its context has ended.
	unwatchedTime = 2 * time.Millisecond
	// keptBuffer is the largest buffer that is kept for the next use.
	keptBuffer = 64 << 10
)

// nativeConn carries many calls at once on one connection to cohort's server. In the ordinary course it has no goroutine
// of its own: the goroutines that call do the writing and the reading.
//
//   - Writing: a call puts its frame into a common buffer; if no other call is writing it writes the buffer until that is
//     empty, so frames that come together leave together.
//   - Reading: of those that wait for an answer one leads, that is reads the connection and hands the others their
//     answers; when it has its own it passes the lead to another that waits. A lone caller is always its own leader, and
//     no other goroutine has to be woken between its request and its answer.
//
// Helpers are started only for what a caller that left leaves behind; the store's close waits for them.
type nativeConn struct {
	conn      net.Conn
	lost      atomic.Bool // mu.err is set
	known     *knownStore
	sessions  bool // the server has sessions
	lostCalls *lostCalls

	mu struct {
		sync.Mutex
		err       error // why the connection ended
		calls     map[uint32]*nativeCall
		lastID    uint32
		abandoned int
		out       []byte // frames to write
		spare     []byte // the other buffer, while it is not being written
		writing   bool
		reading   bool
		followers ilist.List[nativeCall] // the calls that wait for a token, the oldest first
		space     chan struct{}          // not nil: a call waits for out to shrink
		session   *session               // nil: requests have no numbers
		sentAgain map[uint64]*nativeCall // calls of an earlier connection that their callers have not adopted, by their numbers
	}
	helpers *sync.WaitGroup // the store's; nothing is added once mu.err is set

	in         wire.Inbox // owned by the leader
	readArmed  time.Time  // the connection's read deadline; owned by the leader
	writeArmed time.Time  // the connection's write deadline; owned by the writer
	setRead    func(time.Time) error
	setWrite   func(time.Time) error
	callers    sync.Pool // of *nativeCall
}

// nativeCall is one operation in flight. Its fields are guarded by the connection's mu, but op and keys, which are set
// before it is registered.
type nativeCall struct {
	op        wire.Op
	keys      int
	wake      chan struct{} // holds a token after following was reset by another goroutine
	following bool          // waits for a token, and is in the list of followers
	place     ilist.Place[nativeCall]
	lead      bool // with the token: read the connection
	done      bool
	abandoned bool // given up by its caller
	greeting  bool // the question that no call waits for
	id        uint32
	seq       uint64 // its number in the session; 0: it has none
	open      bool   // the server keeps its answer until that is acknowledged for itself
	q         *request
	session   *session
	reply     wire.Reply
	err       error
}

// newNativeConn takes over a connection on which the server has shown to be cohort's. The switch to frames is sent with
// the first request, and with it the question whether this is the store that is known: if it is not, the server answers
// every request with cohort.Replaced.
//
// A session, if there is one, goes on over this connection.
func newNativeConn(f storedial.Conn, helpers *sync.WaitGroup, known *knownStore, lost *lostCalls, s *session) *nativeConn {
	conn := f.Conn
	m := &nativeConn{
		conn: conn, helpers: helpers, known: known, setRead: conn.SetReadDeadline, setWrite: conn.SetWriteDeadline,
		sessions: f.Sessions, lostCalls: lost,
	}
	m.mu.calls, m.mu.out = map[uint32]*nativeCall{}, wire.AppendUpgrade(nil)
	id := m.freeID()
	m.mu.calls[id] = &nativeCall{op: wire.Hello, greeting: true}
	start := len(m.mu.out)
	m.mu.out = wire.EndFrame(wire.AppendHello(wire.BeginFrame(m.mu.out, id), known.get()), start, 0)
	if s != nil {
		m.openSession(s)
	}
	return m
}

// do sends a request and waits for its answer, until ctx ends or limit passes (zero: no limit).
func (m *nativeConn) do(ctx context.Context, limit time.Time, q *request) (wire.Reply, error) {
	c, _ := m.callers.Get().(*nativeCall)
	if c == nil {
		c = &nativeCall{wake: make(chan struct{}, 1)}
	}
	*c = nativeCall{op: q.op, keys: len(q.keys), wake: c.wake}
	failpoint.At("tcpstore.native.call")
	m.mu.Lock()
	if m.mu.err != nil || len(m.mu.out) > maxQueued {
		if err := m.awaitSpace(ctx, limit); err != nil {
			m.mu.Unlock()
			m.callers.Put(c)
			return wire.Reply{}, err
		}
	}
	id := m.freeID()
	m.mu.calls[id] = c
	c.id = id
	start := len(m.mu.out)
	m.mu.out = wire.BeginFrame(m.mu.out, id)
	q.queued = true
	if s := m.mu.session; s != nil && takesNumber[q.op] && s.last+1-s.ack < wire.SessionWindow-1 { // the server remembers no more
		s.last++
		q.seq = s.last
		m.number(q.seq, c, q)
	}
	m.mu.out = wire.EndFrame(q.append(m.mu.out, wire.Native), start, 0)
	if !m.mu.writing {
		m.mu.writing = true
		m.flush(ctx, limit, c)
	}
	return m.finish(ctx, limit, q, c)
}

// takesNumber is which requests change something.
var takesNumber = [wire.OpLimit]bool{
	wire.Set: true, wire.CompareSet: true, wire.Add: true, wire.DeleteKey: true, wire.Append: true, wire.MultiSet: true,
	wire.QueuePush: true, wire.QueuePop: true, wire.Barrier: true, wire.Clear: true,
}

// number gives a call a number in the session, and puts that in front of its request. The caller holds mu.
func (m *nativeConn) number(seq uint64, c *nativeCall, q *request) {
	s := m.mu.session
	c.seq, c.q, c.session = seq, q, s
	if c.open = q.op == wire.Barrier || q.op == wire.QueuePop && q.wait; c.open {
		s.settle(seq)
	}
	m.mu.out = wire.AppendNumbered(m.mu.out, seq, min(s.ack, seq), 0)
}

// answered takes a call that has its answer, or is given up, off its session. The caller holds mu.
func (m *nativeConn) answered(c *nativeCall) {
	switch {
	case c.seq == 0 || c.session != m.mu.session: // it has no number in this session
	case !c.open:
		c.session.settle(c.seq)
	case m.mu.err == nil: // it goes out with the next request
		start := len(m.mu.out)
		m.mu.out = wire.EndFrame(wire.AppendAcked(wire.BeginFrame(m.mu.out, m.freeID()), c.seq), start, 0)
	}
	c.seq = 0
}

// settle notes that the answer to a number has come, or that the server keeps it until it is acknowledged for itself.
func (s *session) settle(seq uint64) {
	if seq < s.ack {
		return
	}
	s.answered[seq/64%uint64(len(s.answered))] |= 1 << (seq % 64)
	for ; s.ack <= s.last; s.ack++ {
		word, bit := &s.answered[s.ack/64%uint64(len(s.answered))], uint64(1)<<(s.ack%64)
		if *word&bit == 0 {
			return
		}
		*word &^= bit
	}
}

// finish waits for the answer to a call that is sent or being sent. The caller holds mu, which is released.
func (m *nativeConn) finish(ctx context.Context, limit time.Time, q *request, c *nativeCall) (wire.Reply, error) {
	ended := m.await(ctx, limit, c)
	if !c.done && m.mu.err == nil { // ended by ctx or limit
		m.sendCancel(c.id)
		ended = m.awaitFinalReply(ctx, q, c, ended)
	}
	if !c.done {
		m.giveUp(c)
		m.mu.Unlock()
		return wire.Reply{}, ended
	}
	m.mu.Unlock()
	reply, err := c.reply, c.err
	c.reply, c.err, c.q = wire.Reply{}, nil, nil
	m.callers.Put(c)
	return reply, err
}

// awaitFinalReply listens a little longer for the answer of a call whose time is up, where that matters, and returns why the
// call ended if none comes. The caller holds mu.
func (m *nativeConn) awaitFinalReply(ctx context.Context, q *request, c *nativeCall, ended error) error {
	timedOut := errors.Is(ended, error(errLimit))
	var grace time.Duration
	switch {
	case q.op == wire.QueuePop: // an item that is on its way must not be lost
		ctx, grace = context.WithoutCancel(ctx), popGrace
	case q.wait && timedOut:
		grace = finalReplyTime
	default:
		return ended
	}
	switch silent := m.await(ctx, time.Now().Add(grace), c); {
	case silent == nil && cohort.CodeOf(c.err) == cohort.Canceled: // the server has confirmed that nothing came
		c.err = ended
	case silent != nil && !errors.Is(silent, error(errLimit)):
		return silent
	case silent != nil && timedOut:
		return errSilent
	}
	return ended
}

// freeID returns an id that is not in use. The caller holds mu.
func (m *nativeConn) freeID() uint32 {
	for {
		m.mu.lastID++
		if _, used := m.mu.calls[m.mu.lastID]; !used {
			return m.mu.lastID
		}
	}
}

// giveUp leaves a call to be answered after its caller has returned. The caller holds mu.
func (m *nativeConn) giveUp(c *nativeCall) {
	if m.mu.err != nil {
		return
	}
	c.abandoned = true
	m.answered(c) // which is not sent again
	if m.mu.abandoned++; m.mu.abandoned > maxAbandoned {
		m.failLocked(cohort.Newf("tcpstore", cohort.PeerLost, "the server did not answer %d requests", m.mu.abandoned))
	}
	if !m.mu.reading {
		m.passLead()
	}
}

// fail ends the connection and every call on it. The first reason stays.
func (m *nativeConn) fail(err error) {
	failpoint.At("tcpstore.native.fail")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(err)
}

func (m *nativeConn) failLocked(err error) {
	if m.mu.err != nil {
		return
	}
	resends := cohort.CodeOf(err) == cohort.Unknown && m.mu.session != nil
	if cohort.CodeOf(err) == cohort.Unknown {
		err = &lostError{cause: err}
	}
	m.mu.err = err
	m.lost.Store(true)
	_ = m.conn.Close()
	for _, id := range slices.Sorted(maps.Keys(m.mu.calls)) { // in the order of the requests
		c := m.mu.calls[id]
		delete(m.mu.calls, id)
		if c.abandoned {
			continue
		}
		if c.done, c.err = true, err; resends && c.seq != 0 {
			c.err = errResend
			m.loseCall(c)
		}
		if c.following {
			m.signal(c)
		}
	}
	if m.mu.space != nil {
		close(m.mu.space)
		m.mu.space = nil
	}
}

// broken returns why the connection ended, or nil.
func (m *nativeConn) broken() error {
	failpoint.At("tcpstore.native.broken")
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err
}
