// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package storeserve

// This file listens on addresses and on sockets that another process has opened.

import (
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
)

// Listen listens on an inherited descriptor: a bound TCP socket, listening already or not. When port is not 0 the socket must
// be bound to it. The listener owns the descriptor from then on, unless Listen fails. The errors are those of operation op.
func Listen(op string, fd, port int) (net.Listener, error) {
	fail := func(what string, err error) (net.Listener, error) {
		return nil, cohort.Newf(op, cohort.InvalidArgument, "descriptor %d: %s: %w; pass a bound TCP socket", fd, what, err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fail("is not a socket", err)
	}
	if kind != unix.SOCK_STREAM {
		return fail("is not a stream socket", os.ErrInvalid)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fail("has no address", err)
	}
	var bound int
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		bound = a.Port
	case *unix.SockaddrInet6:
		bound = a.Port
	default:
		return fail("is not a TCP socket", os.ErrInvalid)
	}
	if port != 0 && bound != port { // in the words of PyTorch's check of master_listen_fd
		return nil, cohort.Newf(op, cohort.InvalidArgument, "listen fd %d is bound to port %d, expected to be bound to port %d",
			fd, bound, port)
	}
	if err = unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return fail("cannot listen", err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fail("cannot be taken over", err)
	}
	file := os.NewFile(uintptr(own), "listener")
	l, err := net.FileListener(file) // makes a copy once more
	_ = file.Close()
	if err != nil {
		return fail("cannot be used", err)
	}
	_ = unix.Close(fd)
	return l, nil
}
