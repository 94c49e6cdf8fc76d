// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// asOther returns a function that runs the command as another user.
func asOther(t *testing.T) func(args ...string) *command {
	t.Helper()
	testkit.NeedOtherUser(t)
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cohort-other-") //nolint:usetesting // the other user can enter it
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	program := filepath.Join(dir, "cohort")
	if err == nil {
		err = os.WriteFile(program, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(args ...string) *command {
		cmd := exec.Command(program, args...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testkit.OtherUser, Gid: testkit.OtherUser}}
		return (&lan{t: t}).run(cmd)
	}
}

// TestOtherUserOfTheHost: another user of the host can neither read nor change the store of a running job, nor one that "cohort store
// serve" serves, nor its HTTP port, unless that user is allowed; the owner can. The owner is told.
func TestOtherUserOfTheHost(t *testing.T) {
	other := asOther(t)
	own := func(args ...string) *command { return (&lan{t: t}).run(exec.Command("cohort", args...)) }
	t.Run("run", func(t *testing.T) {
		dir := t.TempDir()
		addr, stop := filepath.Join(dir, "addr"), filepath.Join(dir, "stop")
		job := own("run", "--no-live", "--evidence", "-", "--nproc-per-node", "2", "sh", "-c",
			`echo $MASTER_ADDR:$MASTER_PORT >`+addr+`.$RANK; mv `+addr+`.$RANK `+addr+`; while [ ! -e `+stop+` ]; do sleep 0.05; done`)
		testkit.Until(t, "the job runs", func() bool { _, err := os.Stat(addr); return err == nil })
		text, err := os.ReadFile(addr)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.TrimSpace(string(text))
		for _, args := range [][]string{{"set", "stolen", "1"}, {"keys"}} {
			if c := other(append([]string{"store", args[0], "--addr", at, "--timeout", "2s"}, args[1:]...)...); c.ends() == 0 {
				t.Errorf("another user: store %q: %s", args, c)
			}
		}
		if c := own("store", "keys", "--addr", at); c.ends() != 0 || strings.Contains(c.String(), "stolen") {
			t.Errorf("the owner: %s", c)
		}
		if err = os.WriteFile(stop, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if code := job.ends(); code != 0 || !strings.Contains(job.String(), "it belongs to user 65534") ||
			!strings.Contains(job.String(), "--allow-uid 65534") {
			t.Errorf("%d: %s", code, job)
		}
	})
	for name, c := range map[string]struct {
		flags   []string
		allowed bool
	}{"store": {nil, false}, "shared store": {[]string{"--allow-uid", "7,65534"}, true}} {
		t.Run(name, func(t *testing.T) {
			addr, web := "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t)), "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t))
			server := own(append([]string{"store", "serve", "--addr", addr, "--http", web}, c.flags...)...)
			testkit.Until(t, "it is ready", func() bool { return strings.Contains(server.String(), "ready on") })
			if code := other("store", "set", "--addr", addr, "--timeout", "2s", "key", "value").ends(); (code == 0) != c.allowed {
				t.Errorf("another user: exit code %d\n%s", code, server)
			}
			conn, err := testkit.DialAs(t, "tcp", web)
			if err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, 4)
			_, _ = conn.Write([]byte("GET /stats HTTP/1.0\r\n\r\n"))
			if n, _ := conn.Read(answer); (n > 0) != c.allowed {
				t.Errorf("HTTP answers another user with %d bytes", n)
			}
			if own, err := net.Dial("tcp", web); err != nil {
				t.Error(err)
			} else if err = own.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
