// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fdlisten

import (
	"context"
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Addr listens on addr, "host:port"; without a host on all addresses, IPv4 and IPv6. Where nothing can be bound to 127.0.0.1, as in a
// network namespace that has only IPv6, package net listens on the addresses of IPv4 alone: there the socket is made as one of IPv6 that
// also takes IPv4.
func Addr(addr string) (net.Listener, error) {
	ctx := context.Background()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	host, _, _ := net.SplitHostPort(addr)
	if err != nil || host != "" {
		return l, err
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok || at.IP.To4() == nil {
		return l, nil
	}
	_ = l.Close()
	both := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failure error
		called := c.Control(func(fd uintptr) { failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0) })
		return errors.Join(called, failure)
	}}
	at.IP = net.IPv6unspecified
	if l, err = both.Listen(ctx, "tcp6", at.String()); err == nil {
		return l, nil
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", addr) // without IPv6
}
