// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// crossLoopCalls are what a step found to be done for connections, and is done after it.
type crossLoopCalls struct {
	todo   []connWork
	pieces [][]byte // what is to be written for them
	vector []unix.Iovec
}

// connWork is what a step found to be done for a connection.
type connWork struct {
	conn     *loopConn
	from, to int // its part of the pieces
	owed     int // bytes, also those that are not among the pieces
	cut      bool
}

// add notes what is to be done for a connection.
func (e *crossLoopCalls) add(c *loopConn, state *storecore.Conn) {
	from := len(e.pieces)
	e.pieces = state.Pending(e.pieces, loopWriteSize)
	e.todo = append(e.todo, connWork{c, from, len(e.pieces), state.Owed(), state.Cut() != nil})
}

// reset forgets work that is done.
func (e *crossLoopCalls) reset() {
	clear(e.todo)
	e.todo = e.todo[:0]
	clear(e.pieces)
	e.pieces = e.pieces[:0]
}

// writePieces writes several pieces once.
func (e *crossLoopCalls) writePieces(fd int, pieces [][]byte) (int, unix.Errno) {
	for _, p := range pieces {
		e.vector = append(e.vector, unix.Iovec{Base: &p[0]})
		e.vector[len(e.vector)-1].SetLen(len(p))
	}
	n, errno := writevNow(fd, e.vector)
	clear(e.vector)
	e.vector = e.vector[:0]
	return n, errno
}

// unreported is what a loop has done since its last step. The machine learns of it with the next one.
type unreported struct {
	sent    []sent
	dropped []*loopConn // whose sockets are closed
}

// sent is what went out.
type sent struct {
	conn  *loopConn
	bytes int
}

// reportLocked reports to the machine what this loop has done.
func (l *loop) reportLocked() {
	u := &l.unreported
	for _, s := range u.sent {
		l.core.Machine.Sent(s.conn.state, s.bytes)
	}
	clear(u.sent)
	u.sent = u.sent[:0]
	for _, c := range u.dropped {
		l.droppedLocked(c)
	}
	clear(u.dropped)
	u.dropped = u.dropped[:0]
}

// perform does the work for one connection: it writes a client's output, one piece a turn, and arranges for the rest.
// What it makes room for is applied with the next step: a client that reads fast does not keep others waiting. It is
// one function because the kernel's own calls push out what the processor knows of the callers, so that each return
// after a system call is one that it mispredicts.
func (l *loop) perform(e *connWork) {
	c := e.conn
	switch {
	case c.closed:
		return
	case e.cut:
		l.drop(c)
		return
	case c.serial == 0 && !l.join(c):
		return
	case c.blocked: // it is not ready: epoll will report it
		return
	}
	if e.from < e.to {
		failpoint.At("storeserve.write")
		pieces := l.crossLoopCalls.pieces[e.from:e.to]
		var n int
		var errno unix.Errno
		if len(pieces) == 1 {
			n, errno = writeNow(int(c.fd), pieces[0])
		} else {
			n, errno = l.crossLoopCalls.writePieces(int(c.fd), pieces)
		}
		if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
			l.drop(c)
			return
		}
		if n > 0 {
			c.movedAt = l.turn.now
			l.unreported.sent = append(l.unreported.sent, sent{c, n})
		}
		c.blocked = n < e.owed
	}
	l.arm(c)
}

// The calls below never block, because the sockets do not and the timeout is zero. So the scheduler need not know of
// them, which saves about as much time as the kernel needs for them. syscall.RawSyscall6 is where all other ways of
// making such a call end, those of golang.org/x/sys/unix through two more calls and a change of the calling convention.
// A single piece is received and sent with the calls that are made for sockets: read and write pass through the layer
// of files first, which takes 4 % of a small request. Several pieces, which are large, are sent with writev.

func readNow(fd int, b []byte) (int, unix.Errno) {
	//nolint:gosec // see above
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

func writeNow(fd int, b []byte) (int, unix.Errno) {
	//nolint:gosec // see above
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// writevNow is writeNow of several pieces. The kernel takes a thousand; pieces are far fewer, since all but one in two are large.
func writevNow(fd int, v []unix.Iovec) (int, unix.Errno) {
	//nolint:gosec // see above
	n, _, errno := syscall.RawSyscall6(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func pollNow(fd int, events []unix.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), //nolint:gosec // see above
		uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}
