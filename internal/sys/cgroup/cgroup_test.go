// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/cgroup"
)

// TestOf: memory and throttling are read from both kinds of cgroups, and in a container.
func TestOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files     map[string]string
		memory    cgroup.Memory
		throttled time.Duration
	}{
		"v2": {
			map[string]string{
				"proc/7/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "oom 4\noom_kill 2\n",
				"sys/fs/cgroup/job/memory.current": "1000\n",
				"sys/fs/cgroup/job/memory.max":     "1100\n", "sys/fs/cgroup/job/memory.stat": "anon 900\ninactive_file 60\n",
				"sys/fs/cgroup/job/cpu.stat": "usage_usec 9\nthrottled_usec 1500\n",
			},
			cgroup.Memory{Dir: "sys/fs/cgroup/job", Used: 940, Limit: 1100, Kills: 2},
			1500 * time.Microsecond,
		},
		"v2 without a limit, in a container": {
			map[string]string{
				"proc/7/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/memory.events": "oom_kill 0\n",
				"sys/fs/cgroup/memory.current": "1000\n", "sys/fs/cgroup/memory.max": "max\n",
			},
			cgroup.Memory{Dir: "sys/fs/cgroup", Used: 1000},
			0,
		},
		"v1": {
			map[string]string{
				"proc/7/cgroup": "5:cpu,cpuacct:/a\n3:memory:/job\n0::/\n",
				"sys/fs/cgroup/memory/job/memory.oom_control":    "under_oom 0\noom_kill 1\n",
				"sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
				"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
				"sys/fs/cgroup/memory/job/memory.stat":           "inactive_file 1\ntotal_inactive_file 100\n",
				"sys/fs/cgroup/cpu,cpuacct/a/cpu.stat":           "nr_throttled 3\nthrottled_time 2000000\n",
			},
			cgroup.Memory{Dir: "sys/fs/cgroup/memory/job", Used: 900, Kills: 1},
			2 * time.Millisecond,
		},
		"none": {map[string]string{"proc/7/cgroup": "nonsense\n0::/x\n"}, cgroup.Memory{}, 0},
	} {
		root := place(t, c.files)
		if c.memory.Dir != "" {
			c.memory.Dir = filepath.Join(root, c.memory.Dir)
		}
		if got := cgroup.MemoryOf(root, 7); got != c.memory {
			t.Errorf("%s: %+v, want %+v", name, got, c.memory)
		}
		if got := cgroup.ThrottledOf(root, 7); got.Time != c.throttled {
			t.Errorf("%s: %+v, want %v", name, got, c.throttled)
		}
	}
}

// TestFrozen: a frozen cgroup of either version is found, and of the two hierarchies that a process can be in, each one.
func TestFrozen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"v1": {map[string]string{
			"proc/7/cgroup": "6:freezer:/job\n0::/\n",
			"sys/fs/cgroup/freezer/job/freezer.state": "FROZEN\n",
		}, true},
		"v1 thawed": {map[string]string{
			"proc/7/cgroup": "6:freezer:/job\n0::/\n",
			"sys/fs/cgroup/freezer/job/freezer.state": "THAWED\n",
		}, false},
		"v2": {map[string]string{
			"proc/7/cgroup":                   "0::/job\n",
			"sys/fs/cgroup/job/cgroup.events": "populated 1\nfrozen 1\n",
		}, true},
		"v2 thawed": {map[string]string{
			"proc/7/cgroup":                   "0::/job\n",
			"sys/fs/cgroup/job/cgroup.events": "populated 1\nfrozen 0\n",
		}, false},
		"v2 beside v1": {map[string]string{
			"proc/7/cgroup": "6:freezer:/job\n0::/job\n",
			"sys/fs/cgroup/freezer/job/freezer.state": "THAWED\n", "sys/fs/cgroup/unified/job/cgroup.events": "frozen 1\n",
		}, true},
		"the root of all": {map[string]string{"proc/7/cgroup": "6:freezer:/\n0::/\n"}, false},
	} {
		if got := cgroup.Frozen(place(t, c.files), 7); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// place writes files below a made-up root.
func place(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for file, text := range files {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
