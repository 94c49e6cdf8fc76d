// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTraceOfAllNodes: "cohort trace --addr" on one node has the dumps of the Go ranks of all nodes. Each node sees its own
// processes alone.
func TestTraceOfAllNodes(t *testing.T) {
	t.Parallel()
	l := newLAN(t, 2)
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	own := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	if out, err := exec.Command(own[0], append(own[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine cannot hide processes: %v %s", err, out)
	}
	run := func(i int) []string {
		return append(own, path, "run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400",
			"--rdzv-id", "traced", "--evidence", "-",
			"--node-rank", strconv.Itoa(i-1), path, "demo-worker", "--scene", "hang")
	}
	var launchers []*command
	for i := 1; i <= 2; i++ {
		launchers = append(launchers, l.enter(i, run(i)...))
	}
	// From inside of the first node.
	pid := func() string {
		out, _ := exec.Command("pgrep", "-P", strconv.Itoa(launchers[0].cmd.Process.Pid)).Output()
		return strings.TrimSpace(string(out))
	}
	var last string
	for limit := time.Now().Add(90 * time.Second); time.Now().Before(limit); time.Sleep(500 * time.Millisecond) {
		inside := []string{"-t", pid(), "--pid", "--mount", "--net", path}
		ps, _ := exec.Command("nsenter", append(inside, "ps", "traced")...).CombinedOutput()
		store := regexp.MustCompile(`traced +(\S+) `).FindStringSubmatch(string(ps))
		if last = string(ps); store == nil || strings.Count(last, "traced") != 1 {
			continue
		}
		out, _ := exec.Command("nsenter", append(inside, "trace", "--addr", store[1])...).CombinedOutput()
		if last = string(out); regexp.MustCompile(`(?m)^rank 1 never entered #\d+ .*: rank 0 waits`).MatchString(last) &&
			!strings.Contains(last, "no dump") {
			return
		}
	}
	t.Fatalf("no dumps of both nodes:\n%s\n%s%s", last, launchers[0], launchers[1])
}
