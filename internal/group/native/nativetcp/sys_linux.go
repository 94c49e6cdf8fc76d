// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/spinwait"
)

// The system calls of the hot path go past the scheduler (RawSyscall): they never block, and leaving and entering the
// scheduler costs as much as a short one does. During a long one the scheduler would hand the processor to another thread,
// which then has to be given it back; so copies are bounded instead.

// maxCopy bounds one copy to or from the kernel, and with it the time that other goroutines and the collector wait for the
// processor.
const maxCopy = 256 << 10

// iovecs is a scatter/gather list. It lives on the stack: elsewhere it would keep the buffers that it names.
type iovecs struct {
	list  [3]unix.Iovec
	n     int
	bytes int
}

func (v *iovecs) add(b []byte) {
	if len(b) == 0 {
		return
	}
	v.list[v.n].Base = unsafe.SliceData(b) //nolint:gosec // the kernel wants addresses
	v.list[v.n].SetLen(len(b))
	v.n++
	v.bytes += len(b)
}

// sendv writes what the kernel takes, without blocking and without SIGPIPE. For one piece the kernel need not read a list of them, which
// makes a small operation a few hundredths faster.
func sendv(fd int, v *iovecs) (int, syscall.Errno) {
	if v.n == 1 {
		//nolint:gosec // the kernel wants addresses
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(v.list[0].Base)), uintptr(v.bytes),
			unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
		return int(n), errno
	}
	msg := unix.Msghdr{Iov: &v.list[0]}
	msg.SetIovlen(v.n)
	//nolint:gosec // the kernel wants addresses
	n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return int(n), errno
}

// recvv reads what is there.
func recvv(fd int, v *iovecs) (int, syscall.Errno) {
	if v.n == 1 {
		//nolint:gosec // the kernel wants addresses
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(v.list[0].Base)), uintptr(v.bytes),
			unix.MSG_DONTWAIT, 0, 0)
		return int(n), errno
	}
	msg := unix.Msghdr{Iov: &v.list[0]}
	msg.SetIovlen(v.n)
	//nolint:gosec // the kernel wants addresses
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT)
	return int(n), errno
}

// epollLook returns the events that are there.
func epollLook(ep int, events []unix.EpollEvent) (int, syscall.Errno) {
	spinwait.Calls.Epoll.Add(1)
	return epollRaw(ep, events, 0)
}

// epollRaw waits for at most so many milliseconds, without telling the scheduler.
func epollRaw(ep int, events []unix.EpollEvent, ms int) (int, syscall.Errno) {
	//nolint:gosec // the kernel wants addresses
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(ms), 0, 0)
	return int(n), errno
}

// epollSleep waits for events for at most a slice. With rawSleep, the scheduler does not learn of it at first.
func epollSleep(ep int, events []unix.EpollEvent, rawSleep bool) (int, syscall.Errno) {
	spinwait.Calls.Epoll.Add(1)
	if rawSleep && spinwait.BeginRawSleep() {
		n, errno := epollRaw(ep, events, int(spinwait.RawSleep/time.Millisecond))
		spinwait.EndRawSleep()
		if n != 0 || errno != 0 {
			return n, errno
		}
	}
	//nolint:gosec // the kernel wants addresses
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), slice, 0, 0)
	return int(n), errno
}
