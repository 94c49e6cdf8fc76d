// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clocks are the scheduler's clocks, one for each processor. A clock stands still while its processor serves interrupts or, in a
// virtual machine, others, so the clocks of two processors can be half a minute apart.
type clocks map[int]reference

// reference is what a processor's clock showed at a moment.
type reference struct {
	clock float64 // in milliseconds; 0: not known
	at    time.Time
}

// idle returns how long a thread has not run; 0: not known. The kernel reports when it ran last, on the clock of the processor
// that it ran on.
func (c *clocks) idle(pid, tid int) time.Duration {
	cpu, ran := lastOn(pid, tid)
	if ran == 0 {
		return 0
	}
	if *c == nil {
		*c = clocks{}
	}
	now, known := (*c)[cpu]
	if !known {
		now = <-readClock(cpu)
		(*c)[cpu] = now
	}
	return now.since(ran)
}

// lastOn returns the processor that a thread ran on last, and when, on that processor's clock; 0: not known.
func lastOn(pid, tid int) (cpu int, ran float64) {
	thread := fmt.Sprintf("/proc/%d/task/%d", pid, tid)
	cpu, ok := lastProcessor(thread)
	if !ok {
		return 0, 0
	}
	return cpu, lastRun(thread)
}

// since returns how long ago a moment on this clock was; 0: not known.
func (now reference) since(ran float64) time.Duration {
	d := time.Duration((now.clock-ran)*float64(time.Millisecond)) + time.Since(now.at)
	if now.clock == 0 || d < 0 {
		return 0
	}
	return d
}

// Idle returns how long a thread has not run, so that it has been where it is for at least as long; 0: not known, or not in time.
func Idle(ctx context.Context, pid, tid int) time.Duration {
	cpu, ran := lastOn(pid, tid)
	if ran == 0 {
		return 0
	}
	select {
	case now := <-readClock(cpu): // which waits for its turn on a processor that is busy
		return now.since(ran)
	case <-ctx.Done():
		return 0
	}
}

// readClock reads a processor's clock: it has a thread of this process run there and asks when that was.
func readClock(cpu int) <-chan reference {
	result := make(chan reference, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		var only unix.CPUSet
		only.Set(cpu)
		r := reference{}
		if unix.SchedSetaffinity(0, &only) == nil { // else this process may not run there
			r = reference{lastRun("/proc/thread-self"), time.Now()}
		}
		result <- r
	}()
	return result
}

// lastRun reads se.exec_start of a thread, in milliseconds.
func lastRun(thread string) float64 {
	b, err := os.ReadFile(thread + "/sched") //nolint:gosec // a file of the kernel
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "se.exec_start" {
			f, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return f
		}
	}
	return 0
}

// lastProcessor returns the processor that a thread ran on last.
func lastProcessor(thread string) (cpu int, ok bool) {
	b, err := os.ReadFile(thread + "/stat") //nolint:gosec // a file of the kernel
	if err != nil {
		return 0, false
	}
	const processor = 36 // of the fields after the name
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) <= processor {
		return 0, false
	}
	cpu, err = strconv.Atoi(string(f[processor]))
	return cpu, err == nil
}

// wakes returns how long a thread is going to sleep; 0: it does not sleep, or not until a time that can be read. Python's time.sleep
// sleeps until a time of a clock, from 3.11 on.
func wakes(pid, tid int) time.Duration {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	call, err := os.ReadFile(filepath.Join(dir, "task", strconv.Itoa(tid), "syscall")) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0
	}
	// the number of the call, and its arguments in hex: clock, flags, time
	fields := strings.Fields(string(call))
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
