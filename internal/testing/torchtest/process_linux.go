// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// dieWithParent makes the kernel kill the command when the thread that starts it ends.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// signal sends a signal. After SIGSTOP it waits until all threads have stopped: one of them gets the signal and stops the others, and
// on a busy machine these go on until it has run.
func signal(pid int, sig syscall.Signal) {
	_ = syscall.Kill(pid, sig)
	for until := time.Now().Add(10 * time.Second); sig == syscall.SIGSTOP && !stopped(pid) && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// stopped reports whether no thread of a process runs.
func stopped(pid int) bool {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	for _, file := range threads {
		stat, err := os.ReadFile(file) //nolint:gosec // of the kernel's own files
		state := stat[bytes.LastIndexByte(stat, ')')+1:]
		if err == nil && len(state) > 1 && bytes.IndexByte([]byte("TtZX"), state[1]) < 0 {
			return false
		}
	}
	return true
}
