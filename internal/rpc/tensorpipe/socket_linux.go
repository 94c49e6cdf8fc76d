// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/spinwait"
)

const (
	// maxExpect bounds what a receiver waits for at once.
	maxExpect = 4 << 10
	// maxVector is how many buffers the kernel takes at once.
	maxVector = 1024
)

// socket is a TCP connection that the runtime does not watch; see adaptivepoll.go. One goroutine may read and another write.
type socket struct {
	local, remote net.Addr
	file          *os.File // keeps the descriptor while it is used; of the kind that package os does not watch
	raw           syscall.RawConn
	poll          *adaptivePoll
	readable      *epollWaiter
	closed        atomic.Bool

	// Of the reader.
	need int // bytes that will certainly arrive
	low  int // bytes for which the kernel wakes us
	read struct {
		b   []byte
		n   int
		err error
		try func(fd uintptr) bool
	}

	mu       sync.Mutex
	deadline time.Time    // of writes
	writable *epollWaiter // made when the kernel's buffer is full for the first time
}

// takeOver makes a connection one that the runtime does not watch. It returns the given one where that cannot be done.
func takeOver(nc net.Conn, l *adaptivePoll) net.Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	s, err := newSocket(tcp, l)
	if err != nil {
		return nc
	}
	_ = nc.Close()
	return s
}

func newSocket(tcp *net.TCPConn, l *adaptivePoll) (*socket, error) {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err = rc.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err == nil {
		err = os.NewSyscallError("fcntl", dupErr)
	}
	if err != nil {
		return nil, err
	}
	readable, err := newEpollWaiter(fd, unix.EPOLLIN|unix.EPOLLRDHUP)
	if err == nil {
		err = unix.SetNonblock(fd, false) // what does not block would be watched
	}
	if err != nil {
		readable.close()
		_ = unix.Close(fd)
		return nil, err
	}
	s := &socket{
		local: tcp.LocalAddr(), remote: tcp.RemoteAddr(), poll: l, readable: readable, need: 1, low: 1,
		file: os.NewFile(uintptr(fd), "tensorpipe"),
	}
	s.read.try = s.tryRead
	if s.raw, err = s.file.SyscallConn(); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// failed wraps an error as package net does.
func (s *socket) failed(op string, err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return err
	case s.closed.Load():
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "tcp", Source: s.local, Addr: s.remote, Err: err}
}

func (s *socket) expect(n int) { s.need = max(n, 1) }

func (s *socket) Read(b []byte) (int, error) {
	s.read.b = b
	err := s.raw.Read(s.read.try)
	s.read.b = nil
	if err != nil { // closed
		return 0, s.failed("read", err)
	}
	return s.read.n, s.failed("read", s.read.err)
}

func (s *socket) tryRead(fd uintptr) bool {
	s.read.n, s.read.err = s.readFrom(int(fd), s.read.b)
	return true
}

func (s *socket) readFrom(fd int, b []byte) (int, error) {
	polled := false
	for {
		n, err := unix.Read(fd, b)
		switch {
		case n > 0:
			s.need = max(s.need-n, 1)
			return n, nil
		case err == nil && len(b) > 0:
			return 0, io.EOF
		case err == nil:
			return 0, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return 0, os.NewSyscallError("read", err)
		case s.closed.Load():
			return 0, net.ErrClosed
		}
		if s.poll.on && !polled && spinwait.BeginRawSleep() {
			polled = true
			err := s.await(fd)
			spinwait.EndRawSleep()
			if err != nil {
				return 0, err
			}
			continue
		}
		if err := s.wakeAt(fd, 1); err != nil {
			return 0, err
		}
		if err := s.readable.wait(fd); err != nil {
			return 0, err
		}
	}
}

// wakeAt sets how many bytes must have arrived before the kernel wakes us.
func (s *socket) wakeAt(fd, n int) error {
	if s.low == n {
		return nil
	}
	s.low = n
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, n))
}

// await polls until enough has arrived. The next read sees the result.
func (s *socket) await(fd int) error {
	if err := s.wakeAt(fd, min(s.need, maxExpect)); err != nil {
		return err
	}
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	limit := unix.NsecToTimespec(int64(pollTime))
	_, _ = unix.Ppoll(fds[:], &limit, nil)
	return nil
}

func (s *socket) Write(b []byte) (int, error) {
	n, err := s.writeBuffers(net.Buffers{b})
	return int(n), err
}

// writeBuffers writes all of the buffers. It uses up the slice.
func (s *socket) writeBuffers(bufs net.Buffers) (int64, error) {
	var total int64
	var werr error
	err := s.raw.Write(func(fd uintptr) bool {
		total, werr = s.writeTo(int(fd), bufs)
		return true
	})
	if err == nil {
		err = werr
	}
	return total, s.failed("write", err)
}

func (s *socket) writeTo(fd int, bufs net.Buffers) (int64, error) {
	var total int64
	for {
		for len(bufs) > 0 && len(bufs[0]) == 0 {
			bufs = bufs[1:]
		}
		if len(bufs) == 0 {
			return total, nil
		}
		n, err := unix.Writev(fd, bufs[:min(len(bufs), maxVector)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if err = s.awaitRoom(fd); err != nil {
				return total, err
			}
			continue
		case err != nil:
			return total, os.NewSyscallError("writev", err)
		}
		total += int64(n)
		for n > 0 {
			m := min(n, len(bufs[0]))
			n -= m
			if bufs[0] = bufs[0][m:]; len(bufs[0]) == 0 {
				bufs = bufs[1:]
			}
		}
	}
}

// awaitRoom parks until the kernel takes more.
func (s *socket) awaitRoom(fd int) error {
	g, err := s.writeWaiter(fd)
	if err != nil {
		return err
	}
	return g.wait(fd)
}

func (s *socket) writeWaiter(fd int) (*epollWaiter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, net.ErrClosed
	}
	if s.writable == nil {
		g, err := newEpollWaiter(fd, unix.EPOLLOUT)
		if err != nil {
			return nil, err
		}
		s.writable = g
	}
	return s.writable, s.writable.file.SetReadDeadline(s.deadline)
}

// Close may be called at any time. A receiver that polls notices it a moment later and keeps the descriptor until then.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Swap(true) {
		return net.ErrClosed
	}
	s.readable.close()
	s.writable.close()
	return s.file.Close()
}

// SyscallConn is [syscall.Conn]'s.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

func (s *socket) LocalAddr() net.Addr { return s.local }

func (s *socket) RemoteAddr() net.Addr { return s.remote }

func (s *socket) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline is for reads that park.
func (s *socket) SetReadDeadline(t time.Time) error { return s.readable.file.SetReadDeadline(t) }

// SetWriteDeadline is for writes that park.
func (s *socket) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	if s.writable == nil {
		return nil
	}
	return s.writable.file.SetReadDeadline(t)
}

// synRetries is how often the kernel repeats the first packet of a connection: after 1, 3 and 7 seconds. It gives up after 15.
const synRetries = 3

// limitSynRetries makes a dial to a machine that does not answer end in seconds. The kernel ends it, not we: the other side has
// seen nothing or does not know that it was seen, so no listener ever accepts it.
func limitSynRetries(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SYNCNT, synRetries) // without it the default holds
	})
}

// silence asks the kernel when the last packet of the other side arrived.
func silence(nc net.Conn) (d time.Duration) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			d = time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
		}
	})
	return d
}
