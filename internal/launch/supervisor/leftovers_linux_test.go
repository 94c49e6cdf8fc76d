// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
)

// TestKillMarked: processes with the variable and all below them are killed, others are not, and none if this process is one of them.
func TestKillMarked(t *testing.T) {
	t.Parallel()
	const name = "COHORT_TEST_LEFT"
	start := func(value string) []int {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", family)
		cmd.Env = append(os.Environ(), name+"="+value)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		all := pids(t, bufio.NewReader(out), 4)
		t.Cleanup(func() {
			_, _, _ = KillMarked(name + "=" + value)
			_ = cmd.Wait()
		})
		return all
	}
	mine := strconv.Itoa(os.Getpid())
	dead, others := start(mine), start(mine+"1")
	if runs := Runs(name); !slices.Contains(runs, mine) || !slices.Contains(runs, mine+"1") {
		t.Errorf("the runs are %q", runs)
	}
	killed, left, err := KillMarked(name + "=" + mine)
	if killed < 4 || left != 0 || err != nil {
		t.Errorf("%d are killed, %d left, %v", killed, left, err)
	}
	waitGone(t, dead[:3]...) // the last one is a child of this process, which has not waited for it
	for _, pid := range others {
		if !lives(pid) {
			t.Errorf("process %d, without the variable, was killed", pid)
		}
	}
	environ, err := os.ReadFile("/proc/self/environ")
	if err != nil || len(environ) == 0 {
		t.Fatalf("%q, %v", environ, err)
	}
	if own := string(environ[:slices.Index(environ, 0)]); !inside([]string{own}) || inside([]string{own + "x"}) {
		t.Errorf("this process was not started with %s", own)
	}
}

// TestProcessWithoutEnvironment: a process that has no environment, as one has while it executes a program, makes a scan unsure.
func TestProcessWithoutEnvironment(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.Env = []string{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if is, empty := marked(cmd.Process.Pid, []string{"A=1"}); is || !empty { // Start returns after the execve
		t.Errorf("the process without environment: %v, %v", is, empty)
	}
	if _, unsure := scan(nil, []string{"A=1"}); !unsure {
		t.Error("the scan is sure")
	}
	if is, empty := marked(os.Getpid(), []string{"A=1"}); is || empty {
		t.Errorf("this process: %v, %v", is, empty)
	}
	const kthreadd = 2
	if _, err := os.Readlink("/proc/2/exe"); err != nil {
		if is, empty := marked(kthreadd, []string{"A=1"}); is || empty {
			t.Errorf("a thread of the kernel: %v, %v", is, empty)
		}
	}
}
