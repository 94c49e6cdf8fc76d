// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// gate parks a goroutine until a descriptor that the runtime does not watch is ready. The runtime watches
// an epoll instance instead, which has events only while a goroutine waits.
type epollWaiter struct {
	file   *os.File
	raw    syscall.RawConn
	events uint32
}

func newEpollWaiter(fd int, events uint32) (*epollWaiter, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	disarmed := unix.EpollEvent{Events: unix.EPOLLONESHOT}
	if err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &disarmed); err == nil {
		err = unix.SetNonblock(ep, true) // so that it is watched
	}
	if err != nil {
		_ = unix.Close(ep)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	g := &epollWaiter{file: os.NewFile(uintptr(ep), "gate"), events: events}
	if g.raw, err = g.file.SyscallConn(); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// wait waits until fd is ready, until the deadline of the file, or until the waiter is closed.
func (g *epollWaiter) wait(fd int) error {
	armed := false
	var failure error
	err := g.raw.Read(func(ep uintptr) bool {
		if !armed {
			armed = true
			once := unix.EpollEvent{Events: g.events | unix.EPOLLONESHOT}
			if failure = unix.EpollCtl(int(ep), unix.EPOLL_CTL_MOD, fd, &once); failure != nil {
				return true
			}
		}
		var ready [1]unix.EpollEvent
		n, err := unix.EpollWait(int(ep), ready[:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			failure = err
		}
		return n > 0 || failure != nil
	})
	if err == nil {
		err = os.NewSyscallError("epoll", failure)
	}
	return err
}

func (g *epollWaiter) close() {
	if g != nil {
		_ = g.file.Close()
	}
}

// watch waits for the end of connections. It is an epoll instance that is asked for ends only, so data does not wake it
// and the readers of the connections are not disturbed. Where it cannot be made nothing is watched.
type watch struct {
	file    *os.File
	raw     syscall.RawConn
	streams []*stream
}

func newWatch(all ...*stream) *watch {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	if err = unix.SetNonblock(ep, true); err != nil { // so that the runtime watches it
		_ = unix.Close(ep)
		return nil
	}
	w := &watch{file: os.NewFile(uintptr(ep), "watch"), streams: all}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.close()
		return nil
	}
	for i, s := range all {
		w.add(i, s)
	}
	return w
}

func (w *watch) add(i int, s *stream) {
	sc, ok := s.nc.(syscall.Conn)
	if !ok {
		return
	}
	conn, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = w.raw.Control(func(ep uintptr) {
		_ = conn.Control(func(fd uintptr) {
			once := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(i)} //nolint:gosec // a small number
			_ = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, int(fd), &once)
		})
	})
}

// wait returns the next connection that has ended, each of them once. It waits until the deadline, or until the watch is
// closed.
func (w *watch) wait(deadline time.Time) (*stream, error) {
	if w == nil {
		return nil, errors.ErrUnsupported
	}
	if err := w.file.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	var ended *stream
	var failure error
	failpoint.At("tensorpipe.watch.wait")
	err := w.raw.Read(func(ep uintptr) bool {
		var ready [1]unix.EpollEvent
		n, err := unix.EpollWait(int(ep), ready[:], 0)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			failure = os.NewSyscallError("epoll_wait", err)
			return true
		case n > 0:
			ended = w.streams[ready[0].Fd]
		}
		return n > 0
	})
	if err == nil {
		err = failure
	}
	return ended, err
}

func (w *watch) close() {
	if w != nil {
		_ = w.file.Close()
	}
}

// arrived asks the kernel how many bytes have arrived on a connection, and whether some of them were not read.
func arrived(nc net.Conn) (n uint64, unread bool) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Bytes_received
		}
		waiting, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		unread = err == nil && waiting > 0
	})
	return n, unread
}
