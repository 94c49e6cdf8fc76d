// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// plain runs the command with a pipe for its output and interrupts it as soon as a line matches until.
func plain(t *testing.T, until *regexp.Regexp, args ...string) (out, complaints string, code int) {
	t.Helper()
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var text strings.Builder
	interrupted := false
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		if !interrupted && until.MatchString(text.String()) {
			interrupted = true
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if !interrupted {
		t.Fatalf("%v: no output matched %v:\n%s%s", args, until, text.String(), stderr.String())
	}
	return text.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// Without a terminal frames follow each other until a signal ends it, which is not a failure.
func TestTopWithoutATerminal(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	out, complaints, code := plain(t, regexp.MustCompile(`(?s)no waiters.*no waiters`),
		"store", "top", "--addr", server.Addr().String(), "--every", "100ms")
	if code != 0 || complaints != "" || strings.Contains(out, "\x1b") {
		t.Errorf("exit %d, %q\n%q", code, complaints, out)
	}
	out, _, code = plain(t, regexp.MustCompile(`(?s)\n{`), "store", "top", "--addr", server.Addr().String(), "--every", "100ms", "--json")
	if code != 0 || !strings.HasPrefix(out, `{"schema":"cohort.store.top.v1","addr":"127.0.0.1:`) {
		t.Errorf("exit %d\n%q", code, out)
	}
}

func TestDemoInterrupted(t *testing.T) {
	out, complaints, code := plain(t, regexp.MustCompile(`waiting: rank 0 for demo/barrier/open`), "demo")
	if code != 1 || complaints != "cohort: interrupted by SIGINT\n" {
		t.Errorf("exit %d, %q", code, complaints)
	}
	pids := regexp.MustCompile(`\(pid (\d+)\)`).FindAllStringSubmatch(out, -1)
	if len(pids) < 3 { // the report of one may still be on its way
		t.Errorf("%d workers are named:\n%s", len(pids), out)
	}
	for _, match := range pids {
		pid, err := strconv.Atoi(match[1])
		if err != nil {
			t.Fatal(err)
		}
		if alive(pid) {
			t.Errorf("worker %d is left behind", pid)
		}
	}
}
