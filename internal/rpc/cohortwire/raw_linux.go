// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package cohortwire

import (
	"syscall"
	"unsafe"
)

// rawPiece bounds what one call copies, since the garbage collector waits for it.
const rawPiece = 256 << 10

// rawRead reads from a descriptor that does not block. The runtime is not notified: for every call that might block it wakes its monitor,
// a thread that takes a core from the writer on the other side.
func rawRead(fd uintptr, b []byte) (int, error) { return rawCall(syscall.SYS_READ, fd, b) }

// rawWrite writes to a descriptor that does not block, as rawRead reads.
func rawWrite(fd uintptr, b []byte) (int, error) { return rawCall(syscall.SYS_WRITE, fd, b) }

func rawCall(call, fd uintptr, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	//nolint:gosec // a call of the system
	n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(min(len(b), rawPiece)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
