// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package oomkill counts the processes that the kernel has killed for lack of memory in a cgroup, of either version.
package oomkill

import (
	"os"
	"path/filepath"

	"github.com/cohort-dist/cohort/internal/sys/cgroup"
)

// Count counts the kernel's kills in the cgroup of this process and below.
type Count struct {
	file, limitFile string // or ""
	before          int64
}

// New finds the cgroup. root is "/" but in tests.
func New(root string) Count {
	var m Count
	names := map[bool][2]string{true: {"memory.events", "memory.max"}, false: {"memory.oom_control", "memory.limit_in_bytes"}}
	if dir, v2 := cgroup.Dir(root, "self", "memory", func(v2 bool) string { return names[v2][0] }); dir != "" {
		m.file, m.limitFile = filepath.Join(dir, names[v2][0]), filepath.Join(dir, names[v2][1])
	}
	m.before = kills(m.file)
	return m
}

func kills(file string) int64 { return cgroup.Field(file, "oom_kill") }

// Take reports whether there was such a kill that no earlier call has taken: several workers can be killed at once.
func (m *Count) Take() bool {
	if m.file == "" {
		return false
	}
	if kills(m.file) <= m.before {
		return false
	}
	m.before++
	return true
}

// Forget takes all kills that nobody has taken: they were of other processes than those whose deaths are explained later.
func (m *Count) Forget() { m.before = max(m.before, kills(m.file)) }

// Events returns what the kernel has counted in the cgroup: its own text, "" if there is none.
func (m *Count) Events() string {
	b, err := os.ReadFile(m.file)
	if err != nil {
		return ""
	}
	return string(b)
}

// Limit returns the memory limit of the cgroup in bytes, 0 if there is none.
func (m *Count) Limit() int64 { return cgroup.Limit(m.limitFile) }
