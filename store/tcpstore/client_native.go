// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

const (
	// maxQueued is how many bytes may wait for a slow connection before further calls wait with them.
	maxQueued = 4 << 20
	// maxAbandoned is how many calls may have been given up without an answer before the server counts as hung.
	maxAbandoned = 4096
	// popGrace is how long a pop whose time is up waits to learn whether it took an item.
	popGrace = time.Second
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
// Helpers are started only for what a caller that left leaves behind; close waits for them.
type nativeConn struct {
	conn net.Conn
	lost atomic.Bool // err is set

	mu        sync.Mutex
	err       error // why the connection ended
	calls     map[uint32]*nativeCall
	lastID    uint32
	abandoned int
	out       []byte // frames to write
	spare     []byte // the other buffer, while it is not being written
	writing   bool
	reading   bool
	space     chan struct{} // not nil: somebody waits for out to shrink
	helpers   sync.WaitGroup

	in         inbox     // owned by whoever leads
	readArmed  time.Time // the connection's read deadline; owned by whoever leads
	writeArmed time.Time // the connection's write deadline; owned by whoever writes
	callers    sync.Pool
}

// nativeCall is one operation in flight. Its fields are guarded by the connection's mu, but op and keys, which are set
// before it is registered.
type nativeCall struct {
	op        wire.Op
	keys      int
	wake      chan struct{} // holds a token after following was reset by another goroutine
	following bool          // waits for a token
	lead      bool          // with the token: read the connection
	done      bool
	given     bool // given up by its caller
	reply     wire.Reply
	err       error
}

// newNativeConn takes over a connection on which the server has shown to be cohort's. The switch to frames is sent with
// the first request.
func newNativeConn(conn net.Conn) *nativeConn {
	return &nativeConn{
		conn: conn, calls: map[uint32]*nativeCall{}, out: wire.AppendUpgrade(nil),
		callers: sync.Pool{New: func() any { return &nativeCall{wake: make(chan struct{}, 1)} }},
	}
}

// do sends a request and waits for its answer, until ctx ends or limit passes (zero: no limit).
func (m *nativeConn) do(ctx context.Context, limit time.Time, q *request) (wire.Reply, error) {
	c, _ := m.callers.Get().(*nativeCall)
	*c = nativeCall{op: q.op, keys: len(q.keys), wake: c.wake}
	m.mu.Lock()
	if err := m.awaitSpace(ctx, limit); err != nil {
		m.mu.Unlock()
		m.callers.Put(c)
		return wire.Reply{}, err
	}
	id := m.freeID()
	m.calls[id] = c
	start := len(m.out)
	m.out = wire.EndFrame(q.append(wire.BeginFrame(m.out, id), wire.Native), start)
	if !m.writing {
		m.writing = true
		m.flush(ctx, limit, c)
	}
	ended := m.await(ctx, limit, c)
	if !c.done && m.err == nil { // ended by ctx or limit
		m.sendCancel(id)
		if q.op == wire.QueuePop {
			// An item that is on its way already must not be lost: the cancelled request is answered either way.
			if m.await(context.WithoutCancel(ctx), time.Now().Add(popGrace), c) == nil && dist.CodeOf(c.err) == dist.Canceled {
				c.err = ended
			}
		}
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

// freeID returns an id that is not in use. The caller holds mu.
func (m *nativeConn) freeID() uint32 {
	for {
		m.lastID++
		if _, used := m.calls[m.lastID]; !used {
			return m.lastID
		}
	}
}

// awaitSpace waits while too much is queued for a connection that does not take it. The caller holds mu.
func (m *nativeConn) awaitSpace(ctx context.Context, limit time.Time) error {
	for m.err == nil && m.writing && len(m.out) > maxQueued {
		if m.space == nil {
			m.space = make(chan struct{})
		}
		space := m.space
		m.mu.Unlock()
		err := sleepUntil(ctx, limit, space)
		m.mu.Lock()
		if err != nil {
			return err
		}
	}
	return m.err
}

// flush writes until nothing is queued. The caller holds mu and has set writing; c is its own call, or nil.
func (m *nativeConn) flush(ctx context.Context, limit time.Time, c *nativeCall) {
	for len(m.out) > 0 && m.err == nil {
		buf := m.out
		m.out, m.spare = m.spare[:0], nil
		m.mu.Unlock()
		n, err := m.write(ctx, limit, buf)
		m.mu.Lock()
		switch {
		case err == nil:
		case isTimeout(err) && m.err == nil:
			// The caller's time is up in the middle of a frame. Others' frames depend on the rest being sent.
			rest := buf[n:]
			m.helpers.Go(func() { m.flushRest(rest) })
			return
		default:
			m.failLocked(err)
		}
		if cap(buf) <= keptBuffer {
			m.spare = buf[:0]
		}
		if c != nil && c.done && len(m.out) > 0 && m.err == nil {
			// The caller has its answer already: it need not write for others any longer.
			m.helpers.Go(func() { m.flushRest(nil) })
			return
		}
	}
	m.writing = false
	if m.space != nil {
		close(m.space)
		m.space = nil
	}
}

// flushRest writes what a caller that left was writing for others. It ends when all is written or with the connection.
func (m *nativeConn) flushRest(rest []byte) {
	if _, err := m.write(context.Background(), time.Time{}, rest); err != nil {
		m.fail(err)
	}
	m.mu.Lock()
	m.flush(context.Background(), time.Time{}, nil)
	m.mu.Unlock()
}

// write writes buf. Its error is a timeout only if ctx ended or limit passed.
func (m *nativeConn) write(ctx context.Context, limit time.Time, buf []byte) (n int, err error) {
	until := unwatched(ctx, limit)
	var watch interrupt
	for {
		arm(&m.writeArmed, until, m.conn.SetWriteDeadline)
		var k int
		k, err = m.conn.Write(buf[n:])
		n += k
		if !isTimeout(err) {
			break
		}
		m.writeArmed = longAgo
		if endOf(ctx, limit) != nil {
			break
		}
		if until != limit {
			watch, until = interruptBy(ctx, m.conn.SetWriteDeadline), limit
		}
	}
	if watch.end() {
		m.writeArmed = longAgo
	}
	return n, err
}

// unwatched returns how long a read or write may take before ctx is watched. Nearly all are over before that, and to be
// told of a context's end costs more than a short deadline that many calls share.
func unwatched(ctx context.Context, limit time.Time) time.Time {
	if ctx.Done() == nil {
		return limit
	}
	if first := time.Now().Add(unwatchedTime); limit.IsZero() || first.Before(limit) {
		return first
	}
	return limit
}

// await returns when c is done, or with the error of ctx's or limit's end. The caller holds mu.
func (m *nativeConn) await(ctx context.Context, limit time.Time, c *nativeCall) (ended error) {
	for !c.done && ended == nil {
		if !m.reading {
			m.reading = true
			m.mu.Unlock()
			ended = m.lead(ctx, limit, c)
			m.mu.Lock()
			m.passLead()
			continue
		}
		c.following = true
		m.mu.Unlock()
		ended = sleepUntil(ctx, limit, c.wake)
		m.mu.Lock()
		if ended != nil {
			if c.following {
				c.following = false
			} else {
				<-c.wake // it was woken at the same moment
			}
		}
		if c.lead {
			c.lead, m.reading = false, false
			if ended != nil {
				m.passLead()
			}
		}
	}
	return ended
}

// passLead gives the lead to a call that waits, or lays it down. The caller holds mu and has the lead or was given it.
func (m *nativeConn) passLead() {
	m.reading = false
	for _, c := range m.calls {
		if c.following {
			m.reading = true
			c.lead = true
			c.signal()
			return
		}
	}
	if m.abandoned > 0 && m.err == nil {
		m.reading = true
		m.helpers.Go(m.drain)
	}
}

// drain leads while there are answers to come that nobody waits for: a server whose output is not read would cut the
// connection some day.
func (m *nativeConn) drain() {
	for {
		m.mu.Lock()
		if m.abandoned == 0 || m.err != nil {
			m.passLead()
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		arm(&m.readArmed, time.Time{}, m.conn.SetReadDeadline)
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
func (c *nativeCall) signal() {
	c.following = false
	c.wake <- struct{}{} // never blocks: a token is taken before following is set again
}

// lead reads the connection and hands out answers until c has its own, or ctx or limit ends it.
func (m *nativeConn) lead(ctx context.Context, limit time.Time, c *nativeCall) (ended error) {
	until := unwatched(ctx, limit)
	var watch interrupt
	for ended == nil {
		arm(&m.readArmed, until, m.conn.SetReadDeadline)
		err := m.in.fill(m.conn)
		if err == nil {
			var mine bool
			if mine, err = m.deliver(c); err == nil && mine {
				break
			}
		}
		switch {
		case err == nil:
		case !isTimeout(err):
			m.fail(err)
			watch.end()
			return nil
		default:
			m.readArmed = longAgo
			if ended = endOf(ctx, limit); ended == nil && until != limit {
				watch, until = interruptBy(ctx, m.conn.SetReadDeadline), limit
			}
		}
	}
	if watch.end() {
		m.readArmed = longAgo
	}
	return ended
}

// arm sets a deadline. One that is armed already and not later than limit stays, so that in the ordinary course no call
// has to touch the timer; who finds such a deadline passed before its own limit arms again.
func arm(armed *time.Time, limit time.Time, set func(time.Time) error) {
	switch {
	case limit.IsZero():
		if armed.IsZero() {
			return
		}
	case !armed.IsZero() && !armed.After(limit) && time.Until(*armed) > 0:
		return
	}
	*armed = limit
	_ = set(limit)
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
		call := m.calls[id]
		if call == nil {
			return false, dist.Newf("tcpstore: decode", dist.Protocol, "an answer to request %d, which was not asked", id)
		}
		delete(m.calls, id)
		if call.given {
			m.abandoned--
			continue
		}
		call.reply, call.err = decodeReply(call.op, call.keys, frame[wire.FrameHeader:], m.in.whole)
		call.done = true
		mine = mine || call == c
		if call.following {
			call.signal()
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
	case wire.Get, wire.CompareSet, wire.MultiGet, wire.QueuePop, wire.ListKeys, wire.Stats:
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
	start := len(m.out)
	m.out = wire.EndFrame(wire.AppendCancel(wire.BeginFrame(m.out, m.freeID()), id), start)
	if !m.writing {
		m.writing = true
		m.helpers.Go(func() { m.flushRest(nil) }) // the caller's time is up: it must not block on the connection
	}
}

// giveUp leaves a call to be answered when nobody waits for it any longer. The caller holds mu.
func (m *nativeConn) giveUp(c *nativeCall) {
	if m.err != nil {
		return
	}
	c.given = true
	if m.abandoned++; m.abandoned > maxAbandoned {
		m.failLocked(dist.Newf("tcpstore", dist.PeerLost, "the server has left %d requests without an answer", m.abandoned))
	}
	if !m.reading {
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
	if m.err != nil {
		return
	}
	if dist.CodeOf(err) == dist.Unknown {
		err = &lostError{cause: err}
	}
	m.err = err
	m.lost.Store(true)
	_ = m.conn.Close()
	for id, c := range m.calls {
		delete(m.calls, id)
		if c.given {
			continue
		}
		c.done, c.err = true, err
		if c.following {
			c.signal()
		}
	}
	if m.space != nil {
		close(m.space)
		m.space = nil
	}
}

// broken returns why the connection ended, or nil.
func (m *nativeConn) broken() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// close ends all calls with reason and waits for what was started.
func (m *nativeConn) close(reason error) {
	m.fail(reason)
	m.helpers.Wait()
}
