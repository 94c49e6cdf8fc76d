// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"os/exec"
	"runtime"
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
