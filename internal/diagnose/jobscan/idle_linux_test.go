// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestIdle: how long a thread has slept is known whatever processor it ran on last.
func TestIdle(t *testing.T) {
	t.Parallel()
	if lastRun("/proc/thread-self") == 0 {
		t.Skip("this kernel does not tell when a thread last ran")
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	var now clocks
	for cpu := range runtime.NumCPU() {
		if !allowed.IsSet(cpu) {
			continue
		}
		before := time.Now()
		pid := sleeperOn(t, cpu)
		time.Sleep(300 * time.Millisecond)
		if d, most := now.idle(pid, pid), time.Since(before); d > most {
			t.Errorf("processor %d: idle for %v, of a process that was started %v ago", cpu, d, most)
		}
		for limit := time.Now().Add(time.Minute); now.idle(pid, pid) < 100*time.Millisecond; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("processor %d: a process that sleeps is not idle", cpu)
			}
		}
	}
	pid := sleeperOn(t, firstOf(&allowed))
	for limit := time.Now().Add(time.Minute); Idle(t.Context(), pid, pid) < 100*time.Millisecond; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("a process that sleeps is not idle")
		}
	}
	if d := now.idle(1<<22+1, 1); d != 0 {
		t.Errorf("a process that does not exist is idle for %v", d)
	}
}

func firstOf(set *unix.CPUSet) int {
	for cpu := 0; ; cpu++ {
		if set.IsSet(cpu) {
			return cpu
		}
	}
}

// sleeperOn starts a process that sleeps, on a processor.
func sleeperOn(t *testing.T, cpu int) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		var only unix.CPUSet
		only.Set(cpu)
		err := unix.SchedSetaffinity(0, &only) // the process inherits it
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

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
