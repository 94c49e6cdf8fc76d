// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// readNotice reads what a Go rank sends before it ends the connection.
func (p *pair) readNotice(f gloowire.Frame, native bool) error {
	if !native {
		return cohort.New("gloo: read frame", cohort.Protocol, "a notice from a rank that is not a Go rank")
	}
	text := make([]byte, f.Length)
	if err := p.in.payload(text); err != nil {
		return err
	}
	n := gloowire.ParseNotice(f, text, p.d.cfg.Size)
	failpoint.At("gloo.pair.noticed")
	p.d.mu.Lock()
	p.left = true
	p.d.mu.Unlock()
	failpoint.At("gloo.pair.notice")
	p.d.watch.received(p, &n)
	return nil
}

// giveUp ends the connection because the group failed with err. A Go rank gets the reason: it reports an end without a notice
// as the death of this process.
func (p *pair) giveUp(n *gloowire.Notice, err error) {
	if p.sendNotice(n, err) && p.endWriting(err) {
		return // the reader ends the rest
	}
	p.kill(err)
}

// noticeTimeout bounds how long a notice waits for what is being written before it, and for room in the socket.
const noticeTimeout = 200 * time.Millisecond

// sendNotice writes a notice behind the frames that are being written and reports whether it did. What is only queued is dropped.
func (p *pair) sendNotice(n *gloowire.Notice, err error) bool {
	f, text := n.Frame()
	message := make([]byte, gloowire.HeaderSize, gloowire.HeaderSize+len(text))
	f.Put(message)
	message = append(message, text...)

	failpoint.At("gloo.pair.notify")
	p.d.mu.Lock()
	p.dropQueue(err)
	if p.native && p.writing && p.conn != nil {
		p.awaitFlush()
	}
	if !p.native || p.conn == nil || p.writing || p.dead || p.writeErr != nil {
		p.d.mu.Unlock()
		return false
	}
	p.writing = true
	b := &p.batch
	b.bufs[0], b.nops = message, 0
	b.rest = b.bufs[:1]
	p.d.mu.Unlock()
	failpoint.At("gloo.pair.notify.write")

	done, failure := false, error(nil)
	if p.raw != nil {
		// Without a deadline: it could pass before the attempt if this process does not get to run.
		done, failure = p.tryWrite()
	}
	if !done && failure == nil {
		failpoint.At("gloo.pair.notify.rest")
		_ = p.conn.SetWriteDeadline(time.Now().Add(noticeTimeout))
		failure = p.write()
	}
	for more := p.next(failure); more; more = p.next(p.write()) {
	}
	return failure == nil
}

// awaitFlush waits until what is being written is written, for at most noticeTimeout. Called with d.mu held, which it releases
// meanwhile.
func (p *pair) awaitFlush() {
	flushed := make(chan struct{})
	p.flushed = flushed
	p.d.mu.Unlock()
	failpoint.At("gloo.pair.notify.wait")
	limit := time.NewTimer(noticeTimeout)
	defer limit.Stop()
	select {
	case <-flushed:
	case <-p.stop:
	case <-limit.C:
	}
	failpoint.At("gloo.pair.notified")
	p.d.mu.Lock()
}

// drainLimit bounds how long the connection of a failed group is read on.
const drainLimit = 300 * time.Millisecond

// endWriting sends a FIN behind what was written and leaves the connection to the reader: closing a socket with unread data
// resets the connection, which can destroy the notice. It reports whether the connection can do that.
func (p *pair) endWriting(err error) bool {
	half, ok := p.conn.(interface{ CloseWrite() error })
	if !ok {
		return false
	}
	failpoint.At("gloo.pair.end_writing")
	p.d.mu.Lock()
	if p.writeErr == nil {
		p.writeErr = err
	}
	p.d.mu.Unlock()
	failpoint.At("gloo.pair.fin")
	_ = half.CloseWrite()
	_ = p.conn.SetReadDeadline(time.Now().Add(drainLimit))
	return true
}
