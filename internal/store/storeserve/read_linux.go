// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// inbox is what clients have sent, until the machine is given all of it in one step. A step for each client would have the loops take the
// lock, and what it guards, from each other's cores for each request.
type inbox struct {
	all  []message
	buf  []byte // the messages of most
	used int
}

// message is what one client has sent. A client has at most one, since the machine is given it before it is read from again.
type message struct {
	conn   *loopConn
	data   []byte
	size   int  // of the buffer in which a large request goes on
	begins bool // data begins one, and is the machine's to keep
}

const (
	// maxMessages is how many messages the machine is given in one step: so many are handled in a few microseconds, in which other loops
	// may wait for the lock.
	maxMessages = 16
	inboxSize   = 2 * loopReadSize
	// stepWork is how much work the machine may have done in a step before it is given more.
	stepWork = 1 << 8
)

// reset forgets what the machine was given.
func (h *inbox) reset() {
	clear(h.all)
	h.all, h.used = h.all[:0], 0
}

// read takes one buffer from a client.
func (l *loop) read(c *loopConn, events uint32) {
	if c.paused {
		// It may not send more until it reads; asked for nothing, epoll still reports its end. An event that only says that
		// there is something to read is older than that.
		switch {
		case c.wants&unix.EPOLLIN != 0:
			l.arm(c)
		case events&(unix.EPOLLHUP|unix.EPOLLERR) != 0:
			l.drop(c)
		}
		return
	}
	buf := l.readBuffer(c)
	failpoint.At("storeserve.read")
	n, errno := readNow(int(c.fd), buf)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
	case errno != 0 || n == 0:
		l.drop(c)
	default:
		l.received(c, buf[:n])
	}
}

// readBuffer is where a client's next bytes go: those of a large request to where it stays. It grows here, where no other loop
// waits for that.
func (l *loop) readBuffer(c *loopConn) []byte {
	if c.size == 0 {
		room := l.inbox.buf[l.inbox.used:][:loopReadSize] // a client can send a whole buffer
		if !c.granted && l.scarce.Load() {
			return room[:storecore.BeginningSize]
		}
		return room
	}
	if c.size > cap(c.have) {
		c.have = append(make([]byte, 0, c.size), c.have...)
	}
	return c.have[len(c.have):min(c.size, len(c.have)+loopReadMost)]
}

// received notes what a client has sent, which is in its readBuffer.
func (l *loop) received(c *loopConn, data []byte) {
	h := &l.inbox
	m := message{conn: c, data: data, size: c.size, begins: c.size == 0 && !c.granted && c.state.Begins(data)}
	switch {
	case m.begins: // it is copied here, too
		m.data = append(make([]byte, 0, len(data)), data...)
	case m.size == 0:
		h.used += len(data)
	}
	if h.all = append(h.all, m); len(h.all) == maxMessages || len(h.buf)-h.used < loopReadSize {
		l.deliver() // the next one has no room
	}
}

// deliver gives the machine what clients have sent, in one step unless that is much work: other loops wait for the lock.
func (l *loop) deliver() {
	for rest := l.inbox.all; len(rest) > 0; {
		l.enter()
		for end := l.core.Machine.Work() + stepWork; len(rest) > 0 && l.core.Machine.Work() < end; rest = rest[1:] {
			if m := &rest[0]; !m.conn.closed { // a step before may have found that it has gone
				l.deliverLocked(m)
			}
		}
		l.leave()
	}
	l.inbox.reset()
}

func (l *loop) deliverLocked(inbox *message) {
	c := inbox.conn
	switch m := l.core.Machine; {
	case inbox.size != 0:
		m.Extend(c.state, c.have[:len(c.have)+len(inbox.data)])
	case inbox.begins:
		m.Take(c.state, inbox.data, cap(inbox.data))
	default:
		m.Take(c.state, inbox.data, 0)
	}
	c.paused, c.granted = c.state.Paused(), c.state.Granted()
	c.have, c.size = l.core.Machine.Rest(c.state)
}
