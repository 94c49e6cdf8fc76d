// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOOMKills finds kills for memory in both kinds of cgroups, and in a container.
func TestOOMKills(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ cgroup, events, before, after, limit string }{
		"v2": {
			"0::/job\n", "sys/fs/cgroup/job/memory.events", "low 0\noom 3\noom_kill 2\n",
			"low 0\noom 4\noom_kill 3\n", "memory.max",
		},
		"v2 container": {"0::/kubepods/x\n", "sys/fs/cgroup/memory.events", "oom_kill 0\n", "oom_kill 1\n", "memory.max"},
		"v1": {
			"5:cpu:/\n3:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control",
			"oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill_disable 0\noom_kill 1\n", "memory.limit_in_bytes",
		},
	} {
		root := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/self/cgroup", c.cgroup)
		write(c.events, c.before)
		write(filepath.Join(filepath.Dir(c.events), c.limit), "1048576\n")
		m := WatchOOMKills(root)
		if m.Take() {
			t.Errorf("%s: a kill before anything happened", name)
		}
		write(c.events, c.after)
		if !m.Take() {
			t.Errorf("%s: the kill is not seen", name)
		}
		if m.Take() {
			t.Errorf("%s: one kill is seen twice", name)
		}
		if m.Events() != c.after {
			t.Errorf("%s: the events are %q", name, m.Events())
		}
		if m.Limit() != 1<<20 {
			t.Errorf("%s: the limit is %d", name, m.Limit())
		}
	}
	twice := OOMKills{file: filepath.Join(t.TempDir(), "memory.events")}
	if err := os.WriteFile(twice.file, []byte("oom_kill 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, false} {
		if got := twice.Take(); got != want {
			t.Errorf("two kills, asked for the %d. time: %v", i+1, got)
		}
	}
	if err := os.WriteFile(twice.file, []byte("oom_kill 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if twice.Forget(); twice.Take() {
		t.Error("a kill that was forgotten is taken")
	}
	if m := WatchOOMKills(t.TempDir()); m.Take() || m.Limit() != 0 || m.Events() != "" {
		t.Error("without cgroups nothing is known")
	}
}
