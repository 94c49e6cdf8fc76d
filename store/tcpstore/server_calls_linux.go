// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/moment"
)

// do has fn run by the loop's goroutine.
func (d *loop) do(fn func(*core)) bool {
	ran := make(chan struct{})
	moment.At("tcpstore.server.call")
	d.mu.Lock()
	if d.mu.ended {
		d.mu.Unlock()
		return false
	}
	d.mu.calls = append(d.mu.calls, func() {
		fn(d.core)
		close(ran)
	})
	d.wakeLocked()
	d.mu.Unlock()
	<-ran
	return true
}

// wakeLocked is called under the lock: the descriptor is closed only after ended was set under it.
func (d *loop) wakeLocked() {
	one := [8]byte{1}
	_, _ = unix.Write(d.waker, one[:])
}

// runCalls runs what other goroutines asked for, and returns false when the loop is to end.
func (d *loop) runCalls() bool {
	var count [8]byte
	_, _ = unix.Read(d.waker, count[:])
	d.mu.Lock()
	calls, stop := d.mu.calls, d.mu.stop
	d.mu.calls = nil
	d.mu.Unlock()
	for _, call := range calls {
		call()
	}
	d.flush()
	return !stop
}

// finish is the loop's last act.
func (d *loop) finish() {
	d.mu.Lock()
	d.mu.ended = true
	calls := d.mu.calls
	d.mu.calls = nil
	d.mu.Unlock()
	for _, call := range calls {
		call()
	}
	d.draining = true
	for _, c := range d.conns {
		if c != nil {
			d.drop(c)
		}
	}
	d.checkGone()
	if d.core.hook != nil {
		d.core.emit(d.core.takeEvents())
	}
	d.closeFDs()
}

func (d *loop) drain() <-chan struct{} {
	d.do(func(*core) {
		if d.draining {
			return
		}
		// Those that are connected already but were not accepted yet are clients, too.
		for before := -1; before != d.open; {
			before = d.open
			d.acceptSome(acceptsPerTurn)
		}
		d.draining = true
		_ = unix.Close(d.accept)
		d.accept = -1
		d.checkGone()
	})
	return d.gone
}

func (d *loop) end() {
	d.mu.Lock()
	if !d.mu.ended {
		d.mu.stop = true
		d.wakeLocked()
	}
	d.mu.Unlock()
	<-d.done
}

// The calls below never block, because the sockets do not and the timeout is zero. So the scheduler need not know of
// them, which saves about as much time as the kernel needs for them.

func readNow(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))) //nolint:gosec // see above
	return int(n), errno
}

func writeNow(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))) //nolint:gosec // see above
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func pollNow(fd int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0) //nolint:gosec // see above
	if errno != 0 {
		return 0
	}
	return int(n)
}
