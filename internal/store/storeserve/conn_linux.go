// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/store/storecore"
)

// loopConn is a connection. All of it but state belongs to its loop.
type loopConn struct {
	state   *storecore.Conn
	peer    string
	fd      int32
	serial  int32  // 0: it is not served yet
	wants   uint32 // the events that epoll is asked for
	paused  bool   // it is not read from
	granted bool   // it has room for its request
	have    []byte // the part of a large request that is here
	size    int    // of the buffer in which that goes on; 0: it is read as usual
	blocked bool   // its output does not fit into the socket
	closed  bool
	failed  error // why it cannot be served
	movedAt int64 // when output last went out
}

// connTable finds the connection of an event. An event names the serial as well as the descriptor of its connection, so that one that
// was closed and whose descriptor is used again is not taken for the new one.
type connTable struct {
	byFD   []*loopConn
	serial int32 // of the last one
}

// add gives a connection its serial.
func (t *connTable) add(c *loopConn) {
	t.serial++
	c.serial = t.serial
	for int(c.fd) >= len(t.byFD) {
		t.byFD = append(t.byFD, make([]*loopConn, max(64, len(t.byFD)))...)
	}
	t.byFD[c.fd] = c
}

// of returns the connection of an event, nil for one that is closed.
func (t *connTable) of(ev *unix.EpollEvent) *loopConn {
	if int(ev.Fd) >= len(t.byFD) {
		return nil
	}
	c := t.byFD[ev.Fd]
	if c == nil || c.serial != ev.Pad {
		return nil
	}
	return c
}

// remove forgets a connection. One that was never served is not in the table.
func (t *connTable) remove(c *loopConn) {
	if c.serial != 0 {
		t.byFD[c.fd] = nil
	}
}

// stuckConns are the connections whose output does not fit into their socket.
type stuckConns struct {
	all     map[*loopConn]struct{}
	period  int64 // how often to look at them, in nanoseconds
	checkAt int64 // when to look at them next
}

func (s *stuckConns) add(c *loopConn, now int64) {
	c.movedAt = now
	if len(s.all) == 0 {
		s.checkAt = now + s.period
	}
	s.all[c] = struct{}{}
}

func (s *stuckConns) remove(c *loopConn) { delete(s.all, c) }

// due reports whether it is time to look at them.
func (s *stuckConns) due(now int64) bool {
	if len(s.all) == 0 || now < s.checkAt {
		return false
	}
	s.checkAt = now + s.period
	return true
}
