// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// forbidden says why a process may not be read, and what to try.
func forbidden(proc string, pid, user int) string {
	const sudo = "try: sudo cohort why %d"
	if owner := ownerOf(proc, pid); owner >= 0 && owner != user {
		return fmt.Sprintf("process %d belongs to user %d and this is user %d; "+sudo, pid, owner, user, pid)
	}
	switch scope := yama(proc); scope {
	case 1:
		return fmt.Sprintf("this host lets only ancestors of a process read it (kernel.yama.ptrace_scope is 1), and process %d was not started by a launcher of cohort that could be asked; "+sudo, pid, pid)
	case 2:
		return fmt.Sprintf("this host lets only root read processes (kernel.yama.ptrace_scope is 2); "+sudo, pid)
	case 3:
		return fmt.Sprintf("this host lets no user read processes until it is rebooted (kernel.yama.ptrace_scope is 3); try: kill -ABRT %d, which kills the rank and makes Python print its stack", pid)
	}
	return fmt.Sprintf("the kernel does not let this user read process %d: it has other privileges, or a container forbids it (--cap-add SYS_PTRACE); "+sudo, pid, pid)
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
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "status")) //nolint:gosec // a file of the kernel
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if rest, found := strings.CutPrefix(line, "Uid:"); found {
			if f := strings.Fields(rest); len(f) > 1 { // real, effective, saved, of files
				if n, err := strconv.Atoi(f[1]); err == nil {
					return n
				}
			}
		}
	}
	return -1
}
