// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/moment"
)

// setUp makes the loop's descriptors. All loops accept from one listening socket: one that was inherited can be used as well,
// and two servers cannot share a port by mistake, as they could with a socket for each loop (SO_REUSEPORT).
func (l *loop) setUp(listener *net.TCPListener) error {
	raw, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	var dup error
	if err = raw.Control(func(fd uintptr) {
		l.accept, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return err
	}
	if dup != nil {
		return dup
	}
	if err = unix.SetNonblock(l.accept, true); err != nil {
		return err
	}
	// Accepted sockets inherit these from the listener.
	_ = unix.SetsockoptInt(l.accept, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(l.accept, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(l.accept, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, nodelayKeepIdle)
	if l.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.waker, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if err = unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, l.waker, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.waker)}); err != nil { //nolint:gosec // descriptors are small
		return err
	}
	return l.listen()
}

// listen asks to be told of new connections. One loop is told of each, not all of them.
func (l *loop) listen() error {
	return unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, l.accept,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: int32(l.accept)}) //nolint:gosec // descriptors are small
}

// acceptSome takes up to limit new connections and returns how many it took.
func (l *loop) acceptSome(limit int) int {
	took := l.acceptFrom(limit)
	if len(l.accepted) == 0 {
		return took
	}
	l.enter()
	refused := l.arriveLocked(l.accepted)
	clear(l.accepted)
	l.accepted = l.accepted[:0]
	l.leave()
	for _, c := range refused {
		_ = unix.Close(int(c.fd))
	}
	return took
}

func (l *loop) acceptFrom(limit int) int {
	for took := range limit {
		moment.At("storeserve.accept")
		fd, from, err := unix.Accept4(l.accept, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			l.starved = false
			l.accepted = append(l.accepted, &loopConn{fd: int32(fd), peer: peerName(from)}) //nolint:gosec // descriptors are small
		case unix.ECONNABORTED, unix.EINTR, unix.EPROTO:
		case unix.EAGAIN:
			return took
		default:
			l.pauseAccepting(err)
			return took
		}
	}
	return limit
}

// join begins to serve a connection that was given to this loop. It returns false when it cannot.
func (l *loop) join(c *loopConn) bool {
	l.serial++
	c.serial, c.wants = l.serial, unix.EPOLLIN
	for int(c.fd) >= len(l.conns) {
		l.conns = append(l.conns, make([]*loopConn, max(64, len(l.conns)))...)
	}
	l.conns[c.fd] = c
	ev := unix.EpollEvent{Events: c.wants, Fd: c.fd, Pad: c.serial}
	if c.failed = unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, int(c.fd), &ev); c.failed != nil {
		l.drop(c)
		return false
	}
	return true
}

// pauseAccepting waits for descriptors to become free instead of asking for one again and again.
func (l *loop) pauseAccepting(err error) {
	_ = unix.EpollCtl(l.poll, unix.EPOLL_CTL_DEL, l.accept, nil)
	l.acceptAt = l.now + int64(retryPause)
	if l.starved {
		return // it was told already
	}
	l.starved = true
	l.enter()
	l.core.refused("", "cannot accept: "+err.Error()+"; raise the limit of open files")
	l.leave()
}

func (l *loop) acceptAgain() {
	l.acceptAt = 0
	if l.accept >= 0 {
		_ = l.listen()
	}
}

// stopAccepting takes those that are connected already but were not accepted yet, which are clients, too, and closes the
// listener.
func (l *loop) stopAccepting() {
	for l.acceptAt == 0 && l.acceptSome(acceptsPerTurn) > 0 {
	}
	l.closeListener()
}

// closeListener closes this loop's copy of the listener. The last one ends it.
func (l *loop) closeListener() {
	_ = unix.Close(l.accept)
	l.accept = -1
	l.enter()
	if l.mu.accepting--; l.mu.accepting == 0 {
		close(l.deaf)
	}
	l.checkGoneLocked()
	l.leave()
}

func peerName(from unix.Sockaddr) string {
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String() //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)).String() //nolint:gosec // a port
	default:
		return "unknown"
	}
}
