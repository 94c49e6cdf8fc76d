// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"strings"
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
			m.passLead()
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

// drain leads while there are answers to come that nobody waits for: a server whose output is not read would cut the
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
		arm(&m.readArmed, time.Time{}, m.setRead)
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
		frame, err := m.in.Next(maxReply)
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
		if call.given {
			m.mu.abandoned--
			continue
		}
		call.reply, call.err = decodeReply(call.op, call.keys, frame[wire.FrameHeader:], m.in.Whole())
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
	if code := cohort.Code(b[0]); code != 0 {
		detail := string(b[1:min(len(b), 1024)])
		if _, rest, ok := strings.Cut(detail, code.String()+": "); ok {
			detail = rest // the client says operation and code itself
		}
		return wire.Reply{}, &cohort.Error{Op: "tcpstore", Code: code, Rank: cohort.NoRank, Detail: detail}
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
		err = cohort.Newf("tcpstore: decode", cohort.Protocol, "an answer to %s with a body of %d bytes that does not fit it", op, len(body))
	}
	return r, err
}

// fill reads once.
func (m *nativeConn) fill() error {
	failpoint.At("tcpstore.native.fill")
	n, err := m.conn.Read(m.in.Space())
	m.in.Filled(n)
	return readResult(n, err)
}
