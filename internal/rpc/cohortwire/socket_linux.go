// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"net"
	"syscall"
)

// rawSockets says that rawRead and rawWrite can be used.
const rawSockets = true

// disablePacing gives a connection within the host the simplest congestion control. One that paces what it sends, like BBR,
// finds nothing out there and costs timers.
func disablePacing(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, "reno") // only speed depends on it
	})
}
