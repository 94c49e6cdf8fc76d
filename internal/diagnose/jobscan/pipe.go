// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

// pipeOf returns the pipe that a thread reads from, as the kernel names it; "" if it reads from none.
func pipeOf(pid int, t *stacks.Thread) string {
	if t.Kernel != "pipe_read" && t.Kernel != "anon_pipe_read" {
		return ""
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	call, err := os.ReadFile(filepath.Join(dir, "task", strconv.Itoa(t.ID), "syscall")) //nolint:gosec // a file of the kernel
	fields := strings.Fields(string(call))                                              // the number of the call, and its arguments in hex
	if err != nil || len(fields) < 2 {
		return ""
	}
	fd, err := strconv.ParseUint(strings.TrimPrefix(fields[1], "0x"), 16, 31)
	if err != nil {
		return ""
	}
	target, _ := os.Readlink(filepath.Join(dir, "fd", strconv.FormatUint(fd, 10)))
	if !strings.HasPrefix(target, "pipe:") {
		return ""
	}
	return target
}

// writing returns those of the children that could write to a pipe.
func writing(children []verdict.Child, pipe string) []verdict.Child {
	return slices.DeleteFunc(children, func(c verdict.Child) bool { return !writes(c.PID, pipe) })
}

// writes reports whether a process has the end of a pipe that is written to.
func writes(pid int, pipe string) bool {
	const most = 1024
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	files, _ := os.ReadDir(filepath.Join(dir, "fd"))
	for _, f := range files[:min(len(files), most)] {
		target, _ := os.Readlink(filepath.Join(dir, "fd", f.Name()))
		if target != pipe {
			continue
		}
		info, _ := os.ReadFile(filepath.Join(dir, "fdinfo", f.Name())) //nolint:gosec // a file of the kernel
		for line := range strings.Lines(string(info)) {
			if flags, found := strings.CutPrefix(line, "flags:"); found {
				n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
				if err == nil && n&3 != 0 { // not O_RDONLY
					return true
				}
			}
		}
	}
	return false
}
