// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package storeserve

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Addr listens on addr, "host:port"; without a host on all addresses, IPv4 and IPv6, and with the host 0.0.0.0 on those of IPv4 alone.
// Without one that is a socket of IPv6 that also takes IPv4: package net makes one only where it can bind to 127.0.0.1, which it cannot in
// a network namespace that has only IPv6.
func Addr(addr string) (net.Listener, error) {
	ctx := context.Background()
	if host, port, err := net.SplitHostPort(addr); err == nil && host == "" {
		both := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var failure error
			called := c.Control(func(fd uintptr) { failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0) })
			return errors.Join(called, failure)
		}}
		l, err := both.Listen(ctx, "tcp6", net.JoinHostPort("::", port))
		if err == nil || errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EACCES) {
			return l, err
		}
	}
	return (&net.ListenConfig{}).Listen(ctx, familyOf(addr), addr) // with a host, or without IPv6
}
