// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package progresspage

import (
	"time"

	"golang.org/x/sys/unix"
)

// create makes the page as a memory file that stays open as long as the process lives: a link in /proc/PID/fd leads to it.
func create() []byte {
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil
	}
	var page []byte
	if err = unix.Ftruncate(fd, pageSize); err == nil {
		page, err = unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil
	}
	return page
}

// origin is one moment by the kernel's monotonic clock and by Go's, which is the same one and is read without a system call.
var origin = func() (o struct {
	kernel time.Duration
	here   time.Time
},
) {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
		o.kernel = time.Duration(now.Nano())
	}
	o.here = time.Now()
	return o
}()

// Now is the kernel's monotonic clock, which all processes share.
func Now() time.Duration { return origin.kernel + time.Since(origin.here) }
