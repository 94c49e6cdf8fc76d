// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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
