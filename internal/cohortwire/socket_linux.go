// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"net"
	"syscall"
	"unsafe"
)

// rawSockets tells that rawRead and rawWrite can be used.
const rawSockets = true

// rawPiece bounds what one call copies, since the garbage collector waits for it.
const rawPiece = 256 << 10

// rawRead reads from a descriptor that does not block. The runtime is not told: for every call that might block it wakes its monitor,
// a thread that takes a core from whoever is writing on the other side.
func rawRead(fd uintptr, b []byte) (int, error) { return rawCall(syscall.SYS_READ, fd, b) }

// rawWrite writes to a descriptor that does not block, as rawRead reads.
func rawWrite(fd uintptr, b []byte) (int, error) { return rawCall(syscall.SYS_WRITE, fd, b) }

func rawCall(call, fd uintptr, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(min(len(b), rawPiece))) //nolint:gosec // a call of the system
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// withoutPacing gives a connection within the host the simplest congestion control. One that paces what it sends, like BBR,
// finds nothing out there and costs timers.
func withoutPacing(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, "reno") // only speed depends on it
	})
}
