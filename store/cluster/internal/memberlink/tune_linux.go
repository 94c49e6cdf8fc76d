// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package memberlink

import (
	"net"

	"golang.org/x/sys/unix"
)

// tune makes a connection report a host that does not answer, as soon as something sent is not acknowledged in time.
func tune(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	keepAlive(tcp)
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ackTimeout.Milliseconds()))
	})
}
