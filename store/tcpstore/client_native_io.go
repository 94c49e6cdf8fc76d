// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"cmp"
	"context"
	"io"
	"os"
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// This file is the reading half of a nativeConn: one of those that wait leads, and passes the lead on.

// await returns when c is done, or with the error of ctx's or limit's end. The caller holds mu.
func (m *nativeConn) await(ctx context.Context, limit time.Time, c *nativeCall) (ended error) {
	for !c.done && ended == nil {
		if !m.mu.reading {
			m.mu.reading = true
			m.mu.Unlock()
			ended = m.lead(ctx, limit, c)
			failpoint.At("tcpstore.native.led")
			m.mu.Lock()
			if m.mu.reading = false; m.mu.abandoned > 0 || m.mu.followers.First() != nil {
				m.passLead()
			}
			continue
		}
		c.following = true
		m.mu.followers.Add(&c.place, c)
		m.mu.Unlock()
		failpoint.At("tcpstore.native.follow")
		ended = sleepUntil(ctx, limit, c.wake)
		failpoint.At("tcpstore.native.followed")
		m.mu.Lock()
		if ended != nil {
			if c.following {
				m.unfollow(c)
			} else {
				<-c.wake
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
	if first := m.mu.followers.First(); first != nil {
		m.mu.reading = true
		first.Of().lead = true
		m.signal(first.Of())
		return
	}
	if m.mu.abandoned > 0 && m.mu.err == nil {
		m.mu.reading = true
		m.helpers.Go(m.drain)
	}
}

// drain leads while there are answers to come that no call waits for: a server whose output is not read would cut the
// connection some day.
func (m *nativeConn) drain() {
	for {
		failpoint.At("tcpstore.native.leads")
		m.mu.Lock()
		if m.mu.abandoned == 0 || m.mu.err != nil {
			m.passLead()
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		failpoint.At("tcpstore.native.drain")
		w := watcher{armed: &m.readArmed, set: m.setRead}
		_ = w.arm() // no deadline, and no context to watch
		err := m.fill()
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
	m.unfollow(c)
	c.wake <- struct{}{}
}

func (m *nativeConn) unfollow(c *nativeCall) {
	c.following = false
	m.mu.followers.Remove(&c.place)
}

// lead reads the connection and hands out answers until c has its own, or ctx or limit ends it.
func (m *nativeConn) lead(ctx context.Context, limit time.Time, c *nativeCall) (ended error) {
	w := watcher{ctx: ctx, limit: limit, until: unwatched(ctx, limit), armed: &m.readArmed, set: m.setRead}
	defer w.end()
	for {
		if ended = w.arm(); ended != nil {
			return ended
		}
		failpoint.At("tcpstore.native.read")
		err := m.fill()
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
	failpoint.At("tcpstore.native.deliver")
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		frame, kept, err := m.in.Next(maxReply)
		if err != nil || frame == nil {
			return mine || (c != nil && c.done), err
		}
		id, _, err := wire.ParseFrame(frame)
		if err != nil {
			return false, err
		}
		call := m.mu.calls[id]
		if call == nil {
			return false, cohort.Newf("tcpstore: decode", cohort.Protocol, "an answer to request %d, which was not asked", id)
		}
		delete(m.mu.calls, id)
		m.answered(call)
		if call.abandoned {
			m.mu.abandoned--
			continue
		}
		call.reply, call.err = decodeReply(call.op, call.keys, frame[wire.FrameHeader:], kept)
		if (call.op == wire.Hello || call.op == wire.Clear) && call.err == nil {
			m.known.set(call.reply.Value)
		}
		if m.sessions && (call.op == wire.Hello || call.op == wire.Session) {
			m.greeted(call)
		}
		call.done = true
		mine = mine || call == c
		if call.following {
			m.signal(call)
		}
	}
}

// fill reads once.
func (m *nativeConn) fill() error {
	failpoint.At("tcpstore.native.fill")
	n, err := m.conn.Read(m.in.Space())
	m.in.Filled(n)
	if n > 0 {
		return nil // an error comes again with the next read
	}
	return cmp.Or(err, io.ErrNoProgress)
}

// This file is the writing half of a nativeConn: a call that finds no other one writing writes for all.

// awaitSpace waits while too much is queued for a connection that does not take it. The caller holds mu.
func (m *nativeConn) awaitSpace(ctx context.Context, limit time.Time) error {
	for m.mu.err == nil && m.mu.writing && len(m.mu.out) > maxQueued {
		if m.mu.space == nil {
			m.mu.space = make(chan struct{})
		}
		space := m.mu.space
		m.mu.Unlock()
		failpoint.At("tcpstore.native.full")
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
		failpoint.At("tcpstore.native.written")
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
	failpoint.At("tcpstore.native.rest")
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
		failpoint.At("tcpstore.native.write")
		var k int
		k, err = m.conn.Write(buf[n:])
		n += k
		if err == nil || !isTimeout(err) || w.passed() != nil {
			break
		}
	}
	w.end()
	return n, err
}

// sendCancel tells the server that no call waits for request id any more. The caller holds mu.
func (m *nativeConn) sendCancel(id uint32) {
	start := len(m.mu.out)
	m.mu.out = wire.EndFrame(wire.AppendCancel(wire.BeginFrame(m.mu.out, m.freeID()), id), start, 0)
	if !m.mu.writing {
		m.mu.writing = true
		m.helpers.Go(func() { m.flushRest(nil) }) // the caller's time is up: it must not block on the connection
	}
}
