// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/storecore"
)

// read takes one buffer from a client.
func (l *loop) read(c *loopConn, events uint32) {
	if c.paused {
		// It may not send more until it reads; asked for nothing, epoll still tells of its end. An event that only says that
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
	moment.At("storeserve.read")
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
		if !c.granted && l.scarce.Load() {
			return l.buf[:storecore.BeginningSize]
		}
		return l.buf
	}
	if c.size > cap(c.have) {
		c.have = append(make([]byte, 0, c.size), c.have...)
	}
	return c.have[len(c.have):min(c.size, len(c.have)+loopReadMost)]
}

// received tells the machine what a client has sent, which is in its readBuffer.
func (l *loop) received(c *loopConn, data []byte) {
	size := c.size
	begins := size == 0 && !c.granted && c.state.Begins(data)
	if begins { // it is copied here, too
		data = append(make([]byte, 0, len(data)), data...)
	}
	l.enter()
	switch m := l.core.Machine; {
	case size != 0:
		m.Extend(c.state, c.have[:len(c.have)+len(data)])
	case begins:
		m.Take(c.state, data)
	default:
		m.Receive(c.state, data)
	}
	c.paused, c.granted = c.state.Paused(), c.state.Granted()
	c.have, c.size = l.core.Machine.Rest(c.state)
	l.leave()
}
