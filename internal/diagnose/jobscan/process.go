// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

// hasTorch reports whether a process has loaded PyTorch. If it runs no Python code then, it is not starting.
func hasTorch(pid int) bool { return portowner.Loaded(pid, "/libtorch") }

// torchSize is less than PyTorch's libraries take in a process's address space.
const torchSize = 64 << 20

// mayHaveTorch reports whether a process is large enough to have loaded PyTorch. That is quickly asked of each process of a host.
func mayHaveTorch(proc string, pid int) bool {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "statm")) //nolint:gosec // a file of the kernel
	pages, _, _ := strings.Cut(string(b), " ")
	n, failed := strconv.Atoi(pages)
	return err == nil && failed == nil && n >= torchSize/os.Getpagesize()
}

// stat returns the parent and the state of a process.
func stat(proc string, pid int) (parent int, state string) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat")) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0, ""
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 {
		return 0, ""
	}
	parent, _ = strconv.Atoi(string(f[1]))
	return parent, string(f[0])
}

// tracer returns the debugger that a process has been stopped by, or nil.
func tracer(proc string, pid int) *verdict.Holder {
	words := statusOf(proc, pid, "TracerPid")
	if len(words) == 0 {
		return nil
	}
	by, err := strconv.Atoi(words[0])
	if err != nil || by == 0 {
		return nil
	}
	comm, _ := os.ReadFile(filepath.Join(proc, strconv.Itoa(by), "comm")) //nolint:gosec // a file of the kernel
	return &verdict.Holder{PID: by, Command: strings.TrimSpace(string(comm)), Rank: -1}
}

// statusOf returns the words of a line of a process's status, nil if it has none of that name.
func statusOf(proc string, pid int, name string) []string {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "status")) //nolint:gosec // a file of the kernel
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			return strings.Fields(rest)
		}
	}
	return nil
}

// ticks is how many the kernel counts in a second where it tells times of processes.
const ticks = 100

// startOf returns when a process was started, since the machine was; false if it is not there.
func startOf(pid int) (time.Duration, bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")) // a file of the kernel
	if err != nil {
		return 0, false
	}
	const start = 19 // of the fields after the name
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) <= start {
		return 0, false
	}
	n, err := strconv.ParseInt(string(f[start]), 10, 64)
	return time.Duration(n) * time.Second / ticks, err == nil
}

// ownPID is the number that a process has for itself: another one in a container.
func ownPID(proc string, pid int) int {
	if numbers := statusOf(proc, pid, "NSpid"); len(numbers) > 0 {
		if n, err := strconv.Atoi(numbers[len(numbers)-1]); err == nil {
			return n
		}
	}
	return pid
}

// usesGPU reports whether a process computes on a GPU, of NVIDIA or AMD.
func usesGPU(proc string, pid int) bool {
	folder := filepath.Join(proc, strconv.Itoa(pid), "fd")
	all, err := os.ReadDir(folder)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(all, func(e os.DirEntry) bool {
		device, err := os.Readlink(filepath.Join(folder, e.Name()))
		return err == nil && (device == "/dev/nvidia-uvm" || device == "/dev/kfd")
	})
}

// headless reports whether other threads of a process whose main thread has ended go on. One that was killed has some
// for a while, too, which free its memory or wait for a disk.
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

// forbidden says why a process may not be read, and what to try.
func forbidden(proc string, pid, user int) string {
	const sudo = "try: sudo cohort why %d"
	if owner := ownerOf(proc, pid); owner >= 0 && owner != user {
		return fmt.Sprintf("process %d belongs to user %d and this is user %d; "+sudo, pid, owner, user, pid)
	}
	switch scope := yama(proc); scope {
	case 1:
		return fmt.Sprintf(
			"this host lets only ancestors of a process read it (kernel.yama.ptrace_scope is 1), and process %d was not started by "+
				"a launcher of cohort that could be asked; "+sudo, pid, pid)
	case 2:
		return fmt.Sprintf("this host lets only root read processes (kernel.yama.ptrace_scope is 2); "+sudo, pid)
	case 3:
		return fmt.Sprintf(
			"this host lets no user read processes until it is rebooted (kernel.yama.ptrace_scope is 3); try: kill -ABRT %d, which "+
				"kills the rank and makes Python print its stack", pid)
	}
	return fmt.Sprintf(
		"the kernel does not let this user read process %d: it has other privileges, or a container forbids it (--cap-add "+
			"SYS_PTRACE); "+sudo, pid, pid)
}

// yama returns kernel.yama.ptrace_scope, 0 where there is none.
func yama(proc string) int {
	b, err := os.ReadFile(filepath.Join(proc, "sys/kernel/yama/ptrace_scope")) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// ownerOf returns the effective user of a process, -1 if it is not known.
func ownerOf(proc string, pid int) int {
	return effective(statusOf(proc, pid, "Uid"))
}

// effective returns the second of the real, effective, saved and file system's id in a line of a process's status, -1 without it.
func effective(ids []string) int {
	if len(ids) < 2 {
		return -1
	}
	n, err := strconv.Atoi(ids[1])
	if err != nil {
		return -1
	}
	return n
}
