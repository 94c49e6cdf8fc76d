// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestManyWorkers: 64 small workers on one machine, all of which print, keep the launcher below 40 MB, and nothing that they
// print is lost.
func TestManyWorkers(t *testing.T) {
	t.Parallel()
	const workers, lines, limit = 64, 200, 40 << 20
	dir := t.TempDir()
	program := testkit.BuildProgram(t, "cmd/cohort") // this test's own is larger
	script := fmt.Sprintf(
		`for i in $(seq %d); do echo rank $RANK line $i; done; touch %s/here.$RANK; while [ ! -e %s/go ]; do sleep 0.2; done`,
		lines, dir, dir)
	cmd := exec.Command(program, "run", "--nproc-per-node", strconv.Itoa(workers), "--evidence", "-", "sh", "-c",
		strings.ReplaceAll(script, "$", "$$"))
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if here, _ := filepath.Glob(filepath.Join(dir, "here.*")); len(here) == workers {
			break
		}
		if time.Since(begin) > 2*time.Minute {
			t.Fatalf("the workers do not come:\n%s%s", &out, &problems)
		}
	}
	used := peak(t, cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("%v\n%s", err, &problems)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("it does not end")
	}
	if n := strings.Count(out.String(), "\n"); n != workers*lines {
		t.Errorf("%d lines of %d", n, workers*lines)
	}
	if used > limit {
		t.Errorf("the launcher takes %d MB, %d are allowed", used>>20, limit>>20)
	}
	t.Logf("the launcher takes %.1f MB", float64(used)/(1<<20))
}

// peak returns the most memory that a process has had resident.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if match == nil {
		t.Skipf("this machine cannot tell the memory of a process:\n%s", status)
	}
	n, err := strconv.ParseInt(string(match[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
