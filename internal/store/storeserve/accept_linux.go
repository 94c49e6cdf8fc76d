// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// acceptor is where a loop lets connections in.
type acceptor struct {
	fd       int // of the listener, -1 once closed
	users    *peeruid.Policy
	accepted []*loopConn // of whom the machine does not know yet
	again    int64       // when to accept again after the process ran out of descriptors; 0: accepting
	starved  bool        // the last attempt to accept failed
}

// take accepts up to limit connections, fewer if no more have come. An error is a lack of descriptors.
func (d *acceptor) take(limit int) (int, error) {
	for took := range limit {
		failpoint.At("storeserve.accept")
		fd, from, err := unix.Accept4(d.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			d.starved = false
			remote := addrOf(from)
			if to, failed := unix.Getsockname(fd); failed != nil || !d.users.Accepts(addrOf(to), remote) {
				_ = unix.Close(fd)
				continue
			}
			d.accepted = append(d.accepted, &loopConn{fd: int32(fd), peer: remote.String()}) //nolint:gosec // descriptors are small
		case unix.ECONNABORTED, unix.EINTR, unix.EPROTO:
		case unix.EAGAIN:
			return took, nil
		default:
			return took, err
		}
	}
	return limit, nil
}

// setUp makes the loop's descriptors. All loops accept from one listening socket: one that was inherited can be used as well,
// and two servers cannot share a port by mistake, as they could with a socket for each loop (SO_REUSEPORT).
func (l *loop) setUp(listener *net.TCPListener) error {
	raw, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	var dup error
	if err = raw.Control(func(fd uintptr) {
		l.acceptor.fd, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return err
	}
	if dup != nil {
		return dup
	}
	if err = unix.SetNonblock(l.acceptor.fd, true); err != nil {
		return err
	}
	// Accepted sockets inherit these from the listener.
	_ = unix.SetsockoptInt(l.acceptor.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(l.acceptor.fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(l.acceptor.fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, nodelayKeepIdle)
	if l.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.waker, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	//nolint:gosec // descriptors are small
	if err = unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, l.waker, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.waker)}); err != nil {
		return err
	}
	return l.listen()
}

// listen asks to be notified of new connections. One loop is notified of each, not all of them.
func (l *loop) listen() error {
	return unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, l.acceptor.fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: int32(l.acceptor.fd)}) //nolint:gosec // descriptors are small
}

// acceptSome takes up to limit new connections and returns how many it took.
func (l *loop) acceptSome(limit int) int {
	took, err := l.acceptor.take(limit)
	if err != nil {
		l.pauseAccepting(err)
	}
	if len(l.acceptor.accepted) == 0 {
		return took
	}
	l.meter.accepted(len(l.acceptor.accepted))
	l.enter()
	refused := l.arriveLocked(l.acceptor.accepted)
	clear(l.acceptor.accepted)
	l.acceptor.accepted = l.acceptor.accepted[:0]
	l.leave()
	for _, c := range refused {
		_ = unix.Close(int(c.fd))
	}
	return took
}

// join begins to serve a connection that was given to this loop. It returns false when it cannot.
func (l *loop) join(c *loopConn) bool {
	l.conns.add(c)
	c.wants = unix.EPOLLIN
	ev := unix.EpollEvent{Events: c.wants, Fd: c.fd, Pad: c.serial}
	if c.failed = unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, int(c.fd), &ev); c.failed != nil {
		l.drop(c)
		return false
	}
	return true
}

// pauseAccepting waits for descriptors to become free instead of asking for one again and again. Connections that have sent nothing make
// room.
func (l *loop) pauseAccepting(err error) {
	l.enter()
	for range acceptsPerTurn {
		if !l.core.Machine.DropSilent() {
			break
		}
	}
	l.leave()
	_ = unix.EpollCtl(l.poll, unix.EPOLL_CTL_DEL, l.acceptor.fd, nil)
	l.acceptor.again = l.turn.now + int64(retryPause)
	if l.acceptor.starved {
		return // it was reported already
	}
	l.acceptor.starved = true
	l.enter()
	l.core.refused("", "cannot accept: "+err.Error()+"; raise the limit of open files (ulimit -n)")
	l.leave()
}

func (l *loop) acceptAgain() {
	l.acceptor.again = 0
	if l.acceptor.fd >= 0 {
		_ = l.listen()
	}
}

// stopAccepting takes those that are connected already but were not accepted yet, which are clients, too, and closes the
// listener.
func (l *loop) stopAccepting() {
	for l.acceptor.again == 0 && l.acceptSome(acceptsPerTurn) > 0 {
	}
	l.closeListener()
}

// closeListener closes this loop's copy of the listener. The last one ends it.
func (l *loop) closeListener() {
	_ = unix.Close(l.acceptor.fd)
	l.acceptor.fd = -1
	l.enter()
	if l.mu.accepting--; l.mu.accepting == 0 {
		close(l.closedListeners)
	}
	l.checkGoneLocked()
	l.leave()
}

func addrOf(from unix.Sockaddr) (addr netip.AddrPort) {
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)) //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)) //nolint:gosec // a port
	default:
		return addr
	}
}
