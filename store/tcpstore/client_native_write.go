// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"os"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// This file is the writing half of a nativeConn: who finds nobody writing writes for all.

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
		if !isTimeout(err) || w.passed() != nil {
			break
		}
	}
	w.end()
	return n, err
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
