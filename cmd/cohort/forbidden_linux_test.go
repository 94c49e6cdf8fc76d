// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const unprivileged = 65534

// asUnprivileged has a command run as a user without privileges.
func asUnprivileged(cmd *exec.Cmd, dir string) *exec.Cmd {
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	return cmd
}

// TestWhyAmongAncestors: where only an ancestor may read a process, "why" asks the launcher, which is one. Where there is no
// launcher, or it may not read either, it says so, and what to try. The kernel here need not have Yama: in a namespace of its
// own, "why" finds a file that it may not read in place of the memory of each worker.
func TestWhyAmongAncestors(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil || os.Getuid() != 0 {
		t.Skip("this needs root and a Python")
	}
	dir, err := os.MkdirTemp("/tmp", "cohort-unprivileged-") //nolint:usetesting // that of the test may not be entered by others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary := filepath.Join(dir, "cohort")
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", path, binary).CombinedOutput(); err != nil { // this user may not enter its folder
		t.Fatalf("%v: %s", err, out)
	}
	script := filepath.Join(dir, "stand.py")
	for name, text := range map[string]string{
		script:                           "import time\nprint('ready', flush=True)\ntime.sleep(600)\n",
		filepath.Join(dir, "unreadable"): "",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "unreadable"), 0); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, script} {
		if err := os.Chown(name, unprivileged, unprivileged); err != nil {
			t.Fatal(err)
		}
	}
	// start runs a job without privileges until the test ends and returns once so many ranks are ready.
	start := func(ranks int, env []string, args ...string) {
		t.Helper()
		cmd := asUnprivileged(exec.Command(args[0], args[1:]...), dir)
		cmd.Env = append(cmd.Env, env...)
		out := &command{t: t}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		for limit := time.Now().Add(time.Minute); strings.Count(out.String(), "ready") < ranks; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("the job does not start:\n%s", out)
			}
		}
	}
	start(2, nil, binary, "run", "--nproc-per-node", "2", "--rdzv-id", "launched", "--evidence", "-", python, script)
	start(1, []string{"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "TORCHELASTIC_RUN_ID=by-hand"}, python, script)

	// why asks without privileges, in a namespace in which the memory of all processes that run the script is out of reach.
	why := func(job string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		hide := fmt.Sprintf(
			`for p in $(pgrep -u %d -f "^%s .*stand.py"); do mount --bind "%s/unreadable" "/proc/$p/mem" || exit 77; done; exec `+
				`setpriv --reuid %d --regid %d --clear-groups "%s" why "%s"`,
			unprivileged, python, dir, unprivileged, unprivileged, binary, job)
		cmd := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-c", hide)
		cmd.Dir = dir
		var text bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, &text
		if err := cmd.Run(); cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
			t.Skipf("the memory of a process cannot be hidden here: %v %s", err, text.String())
		} else if err != nil {
			t.Fatalf("%v: %s", err, text.String())
		}
		return text.String()
	}
	// one may have been on its way there at the first look
	if got := why("launched"); !strings.Contains(got, "ranks 0 and 1: <module> (stand.py:3)") {
		t.Errorf("through the launcher:\n%s", got)
	}
	if got := why("by-hand"); !strings.Contains(got, "No Python stack could be read: ") || !strings.Contains(got, "try: sudo cohort why ") {
		t.Errorf("without a launcher:\n%s", got)
	}
}
