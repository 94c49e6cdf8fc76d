// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// wakes returns how long a thread is going to sleep; 0: it does not sleep, or not until a time that can be read. Python's time.sleep
// sleeps until a time of a clock, from 3.11 on.
func wakes(pid, tid int) time.Duration {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	call, err := os.ReadFile(filepath.Join(dir, "task", strconv.Itoa(tid), "syscall")) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(call))                                                            // the number of the call, and its arguments in hex: clock, flags, time
	if len(fields) < 4 || fields[0] != strconv.Itoa(unix.SYS_CLOCK_NANOSLEEP) || fields[2] != "0x1" { // TIMER_ABSTIME
		return 0
	}
	clock, err := strconv.ParseInt(strings.TrimPrefix(fields[1], "0x"), 16, 32)
	if err != nil || clock != unix.CLOCK_MONOTONIC && clock != unix.CLOCK_REALTIME {
		return 0
	}
	at, err := strconv.ParseInt(strings.TrimPrefix(fields[3], "0x"), 16, 64)
	if err != nil {
		return 0
	}
	memory, err := os.Open(filepath.Join(dir, "mem")) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0
	}
	defer func() { _ = memory.Close() }()
	var until [16]byte // seconds and nanoseconds
	var now unix.Timespec
	if _, err := memory.ReadAt(until[:], at); err != nil || unix.ClockGettime(int32(clock), &now) != nil {
		return 0
	}
	sec, nsec := now.Unix()
	return between(sec, nsec, binary.NativeEndian.Uint64(until[:8]), binary.NativeEndian.Uint64(until[8:]))
}

// between returns the time from one moment to another; 0 if that is not later, or too far away to be meant.
func between(sec, nsec int64, untilSec, untilNsec uint64) time.Duration {
	if untilSec > math.MaxInt64/uint64(time.Second) || untilNsec >= uint64(time.Second) {
		return 0
	}
	d := time.Duration(int64(untilSec)-sec)*time.Second + time.Duration(int64(untilNsec)-nsec)
	return max(d, 0)
}
