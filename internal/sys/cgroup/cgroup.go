// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads what limits a process: the memory and the processor time of its cgroup, of either version, and
// whether that is frozen.
package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// controllerDir returns the folder of a controller in the cgroup of a process ("self" or its number) that has a file,
// and whether it is one of version 2; "" if there is none. root is "/" but in tests.
func controllerDir(root, pid, controller string, file func(v2 bool) string) (dir string, v2 bool) {
	b, err := os.ReadFile(filepath.Join(root, "proc", pid, "cgroup")) //nolint:gosec // a file of the kernel
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:path
		if len(f) != 3 {
			continue
		}
		v2 := f[0] == "0" && f[1] == ""
		tops := []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		switch {
		case v2:
		case strings.Contains(","+f[1]+",", ","+controller+","):
			tops = []string{filepath.Join("sys/fs/cgroup", f[1]), filepath.Join("sys/fs/cgroup", controller)}
		default:
			continue
		}
		for _, top := range tops {
			// In a container the path is that of the host, and the container's own cgroup is mounted at the top.
			for _, path := range []string{f[2], "/"} {
				dir := filepath.Join(root, top, path)
				if _, err := os.Stat(filepath.Join(dir, file(v2))); err == nil {
					return dir, v2
				}
			}
		}
	}
	return "", false
}

// Of identifies the cgroups of a process: processes for which it returns the same text have the same limits. It is "" if they are
// not known.
func Of(root string, pid int) string {
	b, _ := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "cgroup")) //nolint:gosec // a file of the kernel
	return string(b)
}

// Memory is what a cgroup reports of its memory.
type Memory struct {
	Dir string // its folder; "" if it tells nothing
	// Used is what its processes use and the kernel cannot take back, Limit how much they may; 0: not known, or no limit.
	Used, Limit int64
	// Kills is how many of its processes the kernel has killed for lack of memory since it was made.
	Kills int64
}

// MemoryOf reads the memory of the cgroup of a process.
func MemoryOf(root string, pid int) Memory {
	dir, v2 := controllerDir(root, strconv.Itoa(pid), "memory",
		func(v2 bool) string { return pick(v2, "memory.events", "memory.oom_control") })
	if dir == "" {
		return Memory{}
	}
	m := Memory{
		Dir: dir, Used: number(filepath.Join(dir, pick(v2, "memory.current", "memory.usage_in_bytes"))),
		Limit: memoryLimit(filepath.Join(dir, pick(v2, "memory.max", "memory.limit_in_bytes"))),
	}
	m.Used = max(0, m.Used-field(filepath.Join(dir, "memory.stat"), pick(v2, "inactive_file", "total_inactive_file")))
	m.Kills = field(filepath.Join(dir, pick(v2, "memory.events", "memory.oom_control")), "oom_kill")
	return m
}

// Throttling is how long the processes of a cgroup had to wait because it had used up its processor time.
type Throttling struct {
	Dir  string // its folder; "" if it tells nothing
	Time time.Duration
}

// ThrottledOf reads the throttling of the cgroup of a process.
func ThrottledOf(root string, pid int) Throttling {
	dir, v2 := controllerDir(root, strconv.Itoa(pid), "cpu", func(bool) string { return "cpu.stat" })
	if dir == "" {
		return Throttling{}
	}
	if v2 {
		return Throttling{dir, time.Duration(field(filepath.Join(dir, "cpu.stat"), "throttled_usec")) * time.Microsecond}
	}
	return Throttling{dir, time.Duration(field(filepath.Join(dir, "cpu.stat"), "throttled_time"))}
}

// Frozen reports whether the cgroup of a process is frozen, as docker pause does it: none of its processes runs.
func Frozen(root string, pid int) bool {
	const none = "none" // no file of the other version
	if dir, _ := controllerDir(root, strconv.Itoa(pid), "freezer",
		func(v2 bool) string { return pick(v2, none, "freezer.state") }); dir != "" {
		//nolint:gosec // a file of the kernel
		if b, err := os.ReadFile(filepath.Join(dir, "freezer.state")); err == nil && strings.TrimSpace(string(b)) == "FROZEN" {
			return true
		}
	}
	dir, _ := controllerDir(root, strconv.Itoa(pid), "freezer", func(v2 bool) string { return pick(v2, "cgroup.events", none) })
	return dir != "" && field(filepath.Join(dir, "cgroup.events"), "frozen") == 1
}

func pick(v2 bool, two, one string) string {
	if v2 {
		return two
	}
	return one
}

// memoryLimit reads a limit in bytes, 0 if there is none.
func memoryLimit(file string) int64 {
	n := number(file)
	if n > 1<<60 { // version 1 has no other word for no limit
		return 0
	}
	return n
}

// number reads a file with one number, 0 if there is none.
func number(file string) int64 {
	b, err := os.ReadFile(file) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return max(0, n)
}

// field reads "name N" of a file, 0 if it is not there.
func field(file, name string) int64 {
	b, err := os.ReadFile(file) //nolint:gosec // a file of the kernel
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return max(0, n)
		}
	}
	return 0
}

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
