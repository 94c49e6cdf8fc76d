// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

// fakeProc writes a /proc with these processes: "pid parent VAR=value ...".
func fakeProc(t *testing.T, processes ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, p := range processes {
		f := strings.Fields(p)
		dir := filepath.Join(root, f[0])
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/srv/job", filepath.Join(dir, "cwd")); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"environ": strings.Join(f[2:], "\x00") + "\x00", "cmdline": "python3\x00train.py\x00",
			"stat": f[0] + " (a b) ) S " + f[1] + " 1 1",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func TestGroup(t *testing.T) {
	t.Parallel()
	const master = "MASTER_ADDR=127.0.0.1 MASTER_PORT=4000 "
	root := fakeProc(t,
		"10 1 RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a "+master,
		"11 1 RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a "+master,
		"12 11 RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a "+master, // a data loader
		"13 1 RANK=7 WORLD_SIZE=16 MASTER_ADDR=node0 MASTER_PORT=29500",
		"14 1 HOME=/x",
		"15 1 RANK=x WORLD_SIZE=2",
		"16 1 MYRANK=1",
	)
	got := group(processes(root))
	want := []Job{
		{
			ID: "a", Store: "127.0.0.1:4000", World: 2, Local: true,
			Ranks: []Rank{{Rank: 0, PID: 10, Command: "python3 train.py"}, {Rank: 1, PID: 11, Command: "python3 train.py"}},
		},
		{ID: "node0:29500", Store: "node0:29500", World: 16, Ranks: []Rank{{Rank: 7, PID: 13, Command: "python3 train.py"}}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Rank{})); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
}

// TestStrays: ranks that use different stores by mistake are found, and two jobs of one program are not taken for one.
func TestStrays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		processes []string
		jobs      int
		want      []verdict.Stray
	}{
		"another port": {
			[]string{
				"10 1 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=4000",
				"11 1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=4001",
			},
			2,
			[]verdict.Stray{{Rank: 1, PID: 11, Store: "127.0.0.1:4001"}},
		},
		"another host": {
			[]string{
				"10 1 RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=4000",
				"11 1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.2 MASTER_PORT=4000",
			},
			2,
			[]verdict.Stray{{Rank: 1, PID: 11, Store: "10.0.0.2:4000"}},
		},
		"another name": {[]string{
			"10 1 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=4000",
			"11 1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=4000",
		}, 1, nil},
		"two complete jobs": {[]string{
			"10 1 RANK=0 WORLD_SIZE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=4000",
			"11 1 RANK=0 WORLD_SIZE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=4001",
		}, 2, nil},
		"the same rank": {[]string{
			"10 1 RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=4000",
			"11 1 RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=4001",
		}, 2, nil},
		"different worlds": {[]string{
			"10 1 RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=4000",
			"11 1 RANK=1 WORLD_SIZE=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=4001",
		}, 2, nil},
		"jobs of a launcher": {[]string{
			"10 1 RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=4000 TORCHELASTIC_RUN_ID=a",
			"11 1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=4001 TORCHELASTIC_RUN_ID=b",
		}, 2, nil},
	} {
		jobs := group(processes(fakeProc(t, c.processes...)))
		findOrphans(t.Context(), jobs)
		if diff := cmp.Diff(c.want, jobs[0].Orphans); len(jobs) != c.jobs || diff != "" {
			t.Errorf("%s: %d jobs, strays of the first (-want +got):\n%s", name, len(jobs), diff)
		}
	}
}

// TestStraysWithoutNames: without time to resolve names, two of them may be one server.
func TestStraysWithoutNames(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var ranks []string
	for n := range 8 {
		ranks = append(ranks, fmt.Sprintf("%d 1 RANK=%d WORLD_SIZE=8 MASTER_ADDR=node%d.invalid MASTER_PORT=4000", 10+n, n, n))
	}
	jobs := group(processes(fakeProc(t, ranks...)))
	findOrphans(ctx, jobs)
	for _, j := range jobs {
		if len(jobs) != 8 || j.Orphans != nil {
			t.Errorf("%d jobs, strays of %s: %v", len(jobs), j.ID, j.Orphans)
		}
	}
}

// TestForbidden: each reason why a process may not be read has its words.
func TestForbidden(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{
		"0": "the kernel does not let this user read process 7: it has other privileges, or a container forbids it (--cap-add " +
			"SYS_PTRACE); try: sudo cohort why 7",
		"1": "this host lets only ancestors of a process read it (kernel.yama.ptrace_scope is 1), and process 7 was not started by " +
			"a launcher of cohort that could be asked; try: sudo cohort why 7",
		"2": "this host lets only root read processes (kernel.yama.ptrace_scope is 2); try: sudo cohort why 7",
		"3": "this host lets no user read processes until it is rebooted (kernel.yama.ptrace_scope is 3); try: kill -ABRT 7, which " +
			"kills the rank and makes Python print its stack",
	} {
		proc := t.TempDir()
		for name, text := range map[string]string{
			"sys/kernel/yama/ptrace_scope": scope + "\n",
			"7/status":                     "Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\n",
		} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := forbidden(proc, 7, 1000); got != want {
			t.Errorf("scope %s: %s", scope, got)
		}
		if got, want := forbidden(proc, 7, 1001),
			"process 7 belongs to user 1000 and this is user 1001; try: sudo cohort why 7"; got != want {
			t.Errorf("another user: %s", got)
		}
	}
}
