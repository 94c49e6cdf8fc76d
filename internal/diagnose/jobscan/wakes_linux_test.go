// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"math"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWakes: the end of a sleep is read from outside, as Python sleeps.
func TestWakes(t *testing.T) {
	t.Parallel()
	if strconv.IntSize == 32 {
		t.Skip("the times of the kernel are others")
	}
	threads, ended := make(chan int), make(chan struct{})
	var over atomic.Bool
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var until unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &until); err != nil {
			t.Error(err)
		}
		until.Sec += 3600
		threads <- unix.Gettid()
		for err := error(unix.EINTR); err == unix.EINTR && !over.Load(); { //nolint:errorlint // a plain number
			err = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &until, nil)
		}
	}()
	tid := <-threads
	var d time.Duration
	for limit := time.Now().Add(time.Minute); d == 0 && time.Now().Before(limit); time.Sleep(time.Millisecond) { // until it sleeps
		d = wakes(os.Getpid(), tid)
	}
	if d > time.Hour || d < 30*time.Minute {
		t.Errorf("it sleeps for %v", d)
	}
	over.Store(true)
	for done := false; !done; {
		_ = unix.Tgkill(os.Getpid(), tid, syscall.SIGURG)
		select {
		case <-ended:
			done = true
		case <-time.After(time.Millisecond):
		}
	}
	if d := wakes(os.Getpid(), unix.Gettid()); d != 0 {
		t.Errorf("a thread that runs sleeps for %v", d)
	}
}

func TestBetween(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sec, nsec uint64
		want      time.Duration
	}{
		{100, 5, 0},
		{99, 0, 0},
		{101, 4, time.Second - time.Nanosecond},
		{160, 5, time.Minute},
		{math.MaxUint64, 5, 0},
		{101, 1e9, 0},
	} {
		if d := between(100, 5, c.sec, c.nsec); d != c.want {
			t.Errorf("until %d.%09d it is %v, want %v", c.sec, c.nsec, d, c.want)
		}
	}
}
