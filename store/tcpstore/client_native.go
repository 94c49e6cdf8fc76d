// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
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
//   - Writing: a call puts its frame into a common buffer; if nobody is writing it writes the buffer until that is
//     empty, so frames that come together leave together.
//   - Reading: of those that wait for an answer one leads, that is reads the connection and hands the others their
//     answers; when it has its own it passes the lead to another that waits. A lone caller is always its own leader, and
//     no other goroutine has to be woken between its request and its answer.
//
// Helpers are started only for what a caller that left leaves behind; the store's close waits for them.
type nativeConn struct {
	conn  net.Conn
	lost  atomic.Bool // mu.err is set
	known *knownStore

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
		followers followers
		space     chan struct{} // not nil: somebody waits for out to shrink
	}
	helpers *sync.WaitGroup // the store's; nothing is added once mu.err is set

	in         inbox     // owned by whoever leads
	readArmed  time.Time // the connection's read deadline; owned by whoever leads
	writeArmed time.Time // the connection's write deadline; owned by whoever writes
	setRead    func(time.Time) error
	setWrite   func(time.Time) error
	callers    sync.Pool
}

// nativeCall is one operation in flight. Its fields are guarded by the connection's mu, but op and keys, which are set
// before it is registered.
type nativeCall struct {
	op        wire.Op
	keys      int
	wake      chan struct{} // holds a token after following was reset by another goroutine
	following bool          // waits for a token, and is in the list of followers
	before    *nativeCall   // neighbours in that list
	behind    *nativeCall
	lead      bool // with the token: read the connection
	done      bool
	given     bool // given up by its caller
	greeting  bool // the question that nobody waits for
	reply     wire.Reply
	err       error
}

// followers are the calls that wait for a token, the oldest first.
type followers struct{ first, last *nativeCall }

func (l *followers) add(c *nativeCall) {
	c.following, c.before, c.behind = true, l.last, nil
	if l.last == nil {
		l.first = c
	} else {
		l.last.behind = c
	}
	l.last = c
}

func (l *followers) remove(c *nativeCall) {
	if c.before == nil {
		l.first = c.behind
	} else {
		c.before.behind = c.behind
	}
	if c.behind == nil {
		l.last = c.before
	} else {
		c.behind.before = c.before
	}
	c.following, c.before, c.behind = false, nil, nil
}

// newNativeConn takes over a connection on which the server has shown to be cohort's. The switch to frames is sent with
// the first request, and with it the question whether this is the store that is known: if it is not, the server answers
// every request with dist.Replaced.
func newNativeConn(conn net.Conn, helpers *sync.WaitGroup, known *knownStore) *nativeConn {
	m := &nativeConn{
		conn: conn, helpers: helpers, known: known, setRead: conn.SetReadDeadline, setWrite: conn.SetWriteDeadline,
		callers: sync.Pool{New: func() any { return &nativeCall{wake: make(chan struct{}, 1)} }},
	}
	m.mu.calls, m.mu.out = map[uint32]*nativeCall{}, wire.AppendUpgrade(nil)
	id := m.freeID()
	m.mu.calls[id] = &nativeCall{op: wire.Hello, greeting: true}
	start := len(m.mu.out)
	m.mu.out = wire.EndFrame(wire.AppendHello(wire.BeginFrame(m.mu.out, id), known.get()), start)
	return m
}

// do sends a request and waits for its answer, until ctx ends or limit passes (zero: no limit).
func (m *nativeConn) do(ctx context.Context, limit time.Time, q *request) (wire.Reply, error) {
	c, _ := m.callers.Get().(*nativeCall)
	*c = nativeCall{op: q.op, keys: len(q.keys), wake: c.wake}
	moment.At("tcpstore.native.call")
	m.mu.Lock()
	if err := m.awaitSpace(ctx, limit); err != nil {
		m.mu.Unlock()
		m.callers.Put(c)
		return wire.Reply{}, err
	}
	id := m.freeID()
	m.mu.calls[id] = c
	start := len(m.mu.out)
	m.mu.out = wire.EndFrame(q.append(wire.BeginFrame(m.mu.out, id), wire.Native), start)
	if !m.mu.writing {
		m.mu.writing = true
		m.flush(ctx, limit, c)
	}
	ended := m.await(ctx, limit, c)
	if !c.done && m.mu.err == nil { // ended by ctx or limit
		m.sendCancel(id)
		ended = m.lastChance(ctx, q, c, ended)
	}
	if !c.done {
		m.giveUp(c)
		m.mu.Unlock()
		return wire.Reply{}, ended
	}
	m.mu.Unlock()
	reply, err := c.reply, c.err
	c.reply, c.err = wire.Reply{}, nil
	m.callers.Put(c)
	return reply, err
}

// lastChance listens a little longer for the answer of a call whose time is up, where that matters, and returns why the
// call ended if none comes. The caller holds mu.
func (m *nativeConn) lastChance(ctx context.Context, q *request, c *nativeCall, ended error) error {
	timedOut := errors.Is(ended, error(errLimit))
	var grace time.Duration
	switch {
	case q.op == wire.QueuePop: // an item that is on its way must not be lost
		ctx, grace = context.WithoutCancel(ctx), popGrace
	case q.wait && timedOut:
		grace = lastWord
	default:
		return ended
	}
	switch silent := m.await(ctx, time.Now().Add(grace), c); {
	case silent == nil && dist.CodeOf(c.err) == dist.Canceled: // the server has confirmed that nothing came
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

// awaitSpace waits while too much is queued for a connection that does not take it. The caller holds mu.
func (m *nativeConn) awaitSpace(ctx context.Context, limit time.Time) error {
	for m.mu.err == nil && m.mu.writing && len(m.mu.out) > maxQueued {
		if m.mu.space == nil {
			m.mu.space = make(chan struct{})
		}
		space := m.mu.space
		m.mu.Unlock()
		moment.At("tcpstore.native.full")
		err := sleepUntil(ctx, limit, space)
		m.mu.Lock()
		if err != nil {
			return err
		}
	}
	return m.mu.err
}

// flush writes until nothing is queued. The caller holds mu and has set writing; c is its own call, or nil.
func (m *nativeConn) flush(ctx context.Context, limit time.Time, c *nativeCall) {
	for len(m.mu.out) > 0 && m.mu.err == nil {
		buf := m.mu.out
		m.mu.out, m.mu.spare = m.mu.spare[:0], nil
		m.mu.Unlock()
		n, err := m.write(ctx, limit, buf)
		moment.At("tcpstore.native.written")
		m.mu.Lock()
		switch {
		case err == nil:
		case isTimeout(err) && m.mu.err == nil:
			// The caller's time is up in the middle of a frame. Others' frames depend on the rest being sent.
			rest := buf[n:]
			m.helpers.Go(func() { m.flushRest(rest) })
			return
		default:
			m.failLocked(err)
		}
		if cap(buf) <= keptBuffer {
			m.mu.spare = buf[:0]
		}
		if c != nil && c.done && len(m.mu.out) > 0 && m.mu.err == nil {
			// The caller has its answer already: it need not write for others any longer.
			m.helpers.Go(func() { m.flushRest(nil) })
			return
		}
	}
	m.mu.writing = false
	if m.mu.space != nil {
		close(m.mu.space)
		m.mu.space = nil
	}
}

// flushRest writes what a caller that left was writing for others. It ends when all is written or with the connection.
func (m *nativeConn) flushRest(rest []byte) {
	moment.At("tcpstore.native.rest")
	if _, err := m.write(context.Background(), time.Time{}, rest); err != nil {
		m.fail(err)
	}
	m.mu.Lock()
	m.flush(context.Background(), time.Time{}, nil)
	m.mu.Unlock()
}

// write writes buf. Its error is a timeout only if ctx ended or limit passed.
func (m *nativeConn) write(ctx context.Context, limit time.Time, buf []byte) (n int, err error) {
	w := watcher{ctx: ctx, limit: limit, until: unwatched(ctx, limit), armed: &m.writeArmed, set: m.setWrite}
	for {
		if w.arm() != nil {
			err = os.ErrDeadlineExceeded
			break
		}
		moment.At("tcpstore.native.write")
		var k int
		k, err = m.conn.Write(buf[n:])
		n += k
		if !isTimeout(err) || w.passed() != nil {
			break
		}
	}
	w.end()
	return n, err
}

// await returns when c is done, or with the error of ctx's or limit's end. The caller holds mu.
func (m *nativeConn) await(ctx context.Context, limit time.Time, c *nativeCall) (ended error) {
	for !c.done && ended == nil {
		if !m.mu.reading {
			m.mu.reading = true
			m.mu.Unlock()
			ended = m.lead(ctx, limit, c)
			moment.At("tcpstore.native.led")
			m.mu.Lock()
			m.passLead()
			continue
		}
		m.mu.followers.add(c)
		m.mu.Unlock()
		moment.At("tcpstore.native.follow")
		ended = sleepUntil(ctx, limit, c.wake)
		moment.At("tcpstore.native.followed")
		m.mu.Lock()
		if ended != nil {
			if c.following {
				m.mu.followers.remove(c)
			} else {
				<-c.wake // it was woken at the same moment
			}
		}
		if c.lead {
			c.lead, m.mu.reading = false, false
			if ended != nil {
				m.passLead()
			}
		}
	}
	return ended
}

// passLead gives the lead to a call that waits, or lays it down. The caller holds mu and has the lead or was given it.
func (m *nativeConn) passLead() {
	m.mu.reading = false
	if c := m.mu.followers.first; c != nil {
		m.mu.reading = true
		c.lead = true
		m.signal(c)
		return
	}
	if m.mu.abandoned > 0 && m.mu.err == nil {
		m.mu.reading = true
		m.helpers.Go(m.drain)
	}
}

// drain leads while there are answers to come that nobody waits for: a server whose output is not read would cut the
// connection some day.
func (m *nativeConn) drain() {
	for {
		m.mu.Lock()
		if m.mu.abandoned == 0 || m.mu.err != nil {
			m.passLead()
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		moment.At("tcpstore.native.drain")
		arm(&m.readArmed, time.Time{}, m.setRead)
		err := m.in.fill(m.conn)
		if err == nil {
			_, err = m.deliver(nil)
		}
		if err != nil {
			m.fail(err)
		}
	}
}

// signal wakes a follower. The caller holds mu and has checked following.
func (m *nativeConn) signal(c *nativeCall) {
	m.mu.followers.remove(c)
	c.wake <- struct{}{} // never blocks: a token is taken before following is set again
}

// lead reads the connection and hands out answers until c has its own, or ctx or limit ends it.
func (m *nativeConn) lead(ctx context.Context, limit time.Time, c *nativeCall) (ended error) {
	w := watcher{ctx: ctx, limit: limit, until: unwatched(ctx, limit), armed: &m.readArmed, set: m.setRead}
	defer w.end()
	for {
		if ended = w.arm(); ended != nil {
			return ended
		}
		moment.At("tcpstore.native.read")
		err := m.in.fill(m.conn)
		if err == nil {
			var mine bool
			if mine, err = m.deliver(c); err == nil && mine {
				return nil
			}
		}
		switch {
		case err == nil:
		case !isTimeout(err):
			m.fail(err)
			return nil
		default:
			if ended = w.passed(); ended != nil {
				return ended
			}
		}
	}
}

// deliver hands out the answers that have arrived whole and reports whether c's was among them.
func (m *nativeConn) deliver(c *nativeCall) (mine bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		frame, err := m.in.next()
		if err != nil || frame == nil {
			return mine || (c != nil && c.done), err
		}
		id, _, err := wire.ParseFrame(frame)
		if err != nil {
			return false, err
		}
		call := m.mu.calls[id]
		if call == nil {
			return false, dist.Newf("tcpstore: decode", dist.Protocol, "an answer to request %d, which was not asked", id)
		}
		delete(m.mu.calls, id)
		if call.given {
			m.mu.abandoned--
			continue
		}
		call.reply, call.err = decodeReply(call.op, call.keys, frame[wire.FrameHeader:], m.in.whole)
		if (call.op == wire.Hello || call.op == wire.Clear) && call.err == nil {
			m.known.set(call.reply.Value)
		}
		call.done = true
		mine = mine || call == c
		if call.following {
			m.signal(call)
		}
	}
}

// decodeReply reads status and body of an answer. whole tells that the body is nobody else's.
func decodeReply(op wire.Op, keys int, b []byte, whole bool) (wire.Reply, error) {
	if code := dist.Code(b[0]); code != 0 {
		detail := string(b[1:min(len(b), 1024)])
		if _, rest, ok := strings.Cut(detail, code.String()+": "); ok {
			detail = rest // the client says operation and code itself
		}
		return wire.Reply{}, &dist.Error{Op: "tcpstore", Code: code, Rank: dist.NoRank, Detail: detail}
	}
	body := b[1:]
	switch op { //nolint:exhaustive // the others have no bytes in their replies
	case wire.Get, wire.CompareSet, wire.MultiGet, wire.QueuePop, wire.ListKeys, wire.Stats, wire.Hello, wire.Clear:
		if !whole {
			body = bytes.Clone(body)
		}
	}
	r, n, short, err := wire.ParseReply(wire.Native, op, keys, body, &replyLimits)
	if err == nil && (short || n != len(body)) {
		err = dist.Newf("tcpstore: decode", dist.Protocol, "an answer to %s with a body of %d bytes that does not fit it", op, len(body))
	}
	return r, err
}

// sendCancel tells the server that nobody waits for request id any longer. The caller holds mu.
func (m *nativeConn) sendCancel(id uint32) {
	start := len(m.mu.out)
	m.mu.out = wire.EndFrame(wire.AppendCancel(wire.BeginFrame(m.mu.out, m.freeID()), id), start)
	if !m.mu.writing {
		m.mu.writing = true
		m.helpers.Go(func() { m.flushRest(nil) }) // the caller's time is up: it must not block on the connection
	}
}

// giveUp leaves a call to be answered when nobody waits for it any longer. The caller holds mu.
func (m *nativeConn) giveUp(c *nativeCall) {
	if m.mu.err != nil {
		return
	}
	c.given = true
	if m.mu.abandoned++; m.mu.abandoned > maxAbandoned {
		m.failLocked(dist.Newf("tcpstore", dist.PeerLost, "the server has left %d requests without an answer", m.mu.abandoned))
	}
	if !m.mu.reading {
		m.passLead()
	}
}

// fail ends the connection and every call on it. The first reason stays.
func (m *nativeConn) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(err)
}

func (m *nativeConn) failLocked(err error) {
	if m.mu.err != nil {
		return
	}
	if dist.CodeOf(err) == dist.Unknown {
		err = &lostError{cause: err}
	}
	m.mu.err = err
	m.lost.Store(true)
	_ = m.conn.Close()
	for _, id := range slices.Sorted(maps.Keys(m.mu.calls)) { // in the order of the requests
		c := m.mu.calls[id]
		delete(m.mu.calls, id)
		if c.given {
			continue
		}
		c.done, c.err = true, err
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
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err
}
