// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package storeserve

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// tryWrite writes as much as the socket takes now, and returns how much that is.
func tryWrite(conn net.Conn, b []byte) (n int) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), b)
		return true
	})
	return max(n, 0)
}
