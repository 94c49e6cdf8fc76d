// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// errInside says that this process belongs to what would be killed.
var errInside = errors.New("supervisor: this process, or one that it descends from, was started by it")

// Runs returns the values that a variable has in the environments of this user's processes.
func Runs(name string) []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	found := map[string]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !ours(pid) {
			continue
		}
		environ, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil {
			continue
		}
		for v := range strings.SplitSeq(string(environ), "\x00") {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				found[value] = true
			}
		}
	}
	var all []string
	for value := range found {
		all = append(all, value)
	}
	slices.Sort(all)
	return all
}

// KillMarked kills the processes of this user that were started with a variable ("NAME=value"), and what is below them. Nothing is killed
// if this process is one of them.
func KillMarked(mark string) (killed, left int, err error) {
	marks := []string{mark}
	if inside(marks) {
		return 0, 0, errInside
	}
	list := func() []int {
		return slices.DeleteFunc(started(nil, marks), func(pid int) bool { return !ours(pid) })
	}
	killed, left = sweep(list, false, func() bool { return true })
	return killed, left, nil
}

// inside reports whether this process, or one that it descends from, was started with one of the variables.
func inside(marks []string) bool {
	for pid, ok := os.Getpid(), true; ok && pid > 0; pid, _, ok = parentOf(pid) {
		if is, _ := marked(pid, marks); is {
			return true
		}
	}
	return false
}

// ours reports whether a process is one of this user.
func ours(pid int) bool {
	info, err := os.Stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}
