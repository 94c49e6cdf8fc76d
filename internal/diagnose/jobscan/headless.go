// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// headless reports whether other threads of a process whose main thread has ended go on. One that was killed has some for a while, too, which
// free its memory or wait for a disk.
func headless(proc string, pid int) bool {
	dir := filepath.Join(proc, strconv.Itoa(pid), "task")
	tasks, _ := os.ReadDir(dir)
	for _, task := range tasks {
		if task.Name() != strconv.Itoa(pid) && !exits(filepath.Join(dir, task.Name())) {
			return true
		}
	}
	return false
}

// exits reports whether a thread has ended, is on its way out, or is going to be when it leaves the kernel.
func exits(thread string) bool {
	b, err := os.ReadFile(filepath.Join(thread, "stat")) //nolint:gosec // a file of the kernel
	if err != nil {
		return true
	}
	const flags, exiting = 6, 0x4 // the number of the field after the name, and PF_EXITING
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) <= flags {
		return true
	}
	if set, wrong := strconv.ParseUint(string(f[flags]), 10, 64); wrong == nil && set&exiting != 0 {
		return true
	}
	status, err := os.ReadFile(filepath.Join(thread, "status")) //nolint:gosec // a file of the kernel
	if err != nil {
		return true
	}
	const sigkill = 1 << (9 - 1)
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		if key != "SigPnd" && key != "ShdPnd" {
			continue
		}
		if pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil && pending&sigkill != 0 {
			return true
		}
	}
	return false
}
