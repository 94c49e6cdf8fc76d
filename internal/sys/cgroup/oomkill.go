// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

// This file counts the processes that the kernel has killed for lack of memory in a cgroup, of either version.

import (
	"os"
	"path/filepath"
)

// OOMKills counts the kernel's kills in the cgroup of this process and below.
type OOMKills struct {
	file, limitFile string // or ""
	before          int64
}

// WatchOOMKills finds the cgroup. root is "/" but in tests.
func WatchOOMKills(root string) OOMKills {
	var m OOMKills
	names := map[bool][2]string{true: {"memory.events", "memory.max"}, false: {"memory.oom_control", "memory.limit_in_bytes"}}
	if dir, v2 := controllerDir(root, "self", "memory", func(v2 bool) string { return names[v2][0] }); dir != "" {
		m.file, m.limitFile = filepath.Join(dir, names[v2][0]), filepath.Join(dir, names[v2][1])
	}
	m.before = oomKillCount(m.file)
	return m
}

func oomKillCount(file string) int64 { return field(file, "oom_kill") }

// Take reports whether there was such a kill that no earlier call has taken: several workers can be killed at once.
func (m *OOMKills) Take() bool {
	if m.file == "" {
		return false
	}
	if oomKillCount(m.file) <= m.before {
		return false
	}
	m.before++
	return true
}

// Forget takes all kills that have not been taken: they were of other processes than those whose deaths are explained later.
func (m *OOMKills) Forget() { m.before = max(m.before, oomKillCount(m.file)) }

// Events returns what the kernel has counted in the cgroup: its own text, "" if there is none.
func (m *OOMKills) Events() string {
	b, err := os.ReadFile(m.file)
	if err != nil {
		return ""
	}
	return string(b)
}

// Limit returns the memory limit of the cgroup in bytes, 0 if there is none.
func (m *OOMKills) Limit() int64 { return memoryLimit(m.limitFile) }
