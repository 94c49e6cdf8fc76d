// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below never block, because the sockets do not and the timeout is zero. So the scheduler need not know of
// them, which saves about as much time as the kernel needs for them. syscall.RawSyscall6 is where all other ways of making such
// a call end, those of golang.org/x/sys/unix through two more calls and a change of the calling convention. A single piece is received and sent
// with the calls that are made for sockets: read and write pass through the layer of files first, which takes 4 % of a small request. Several
// pieces, which are large, are sent with writev.

func readNow(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0) //nolint:gosec // see above
	return int(n), errno
}

func writeNow(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0) //nolint:gosec // see above
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// writevNow is writeNow of several pieces. The kernel takes a thousand; pieces are far fewer, since all but one in two are large.
func writevNow(fd int, v []unix.Iovec) (int, unix.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)), 0, 0, 0) //nolint:gosec // see above
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func pollNow(fd int, events []unix.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0) //nolint:gosec // see above
	if errno != 0 {
		return 0
	}
	return int(n)
}
