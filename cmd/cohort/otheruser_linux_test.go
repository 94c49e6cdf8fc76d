// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
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

// TestWhyAsRoot: what the process of another user names is asked with the rights of that user: root's own sockets and pipes are left alone,
// and the user's are asked.
func TestWhyAsRoot(t *testing.T) {
	other := asOther(t)
	dir := t.TempDir()
	socket, pipe := filepath.Join(dir, "socket"), filepath.Join(dir, "pipe")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err = errors.Join(os.Chmod(dir, 0o755), os.Chmod(socket, 0o600), unix.Mkfifo(pipe+"0.pipe", 0o600)); err != nil {
		t.Fatal(err)
	}
	fifo, err := unix.Open(pipe+"0.pipe", unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fifo) }()
	store, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	var came atomic.Int64
	go func() {
		for {
			if _, failed := l.Accept(); failed != nil {
				return
			}
			came.Add(1)
		}
	}()
	users := make(chan uint32, 64)
	go func() {
		defer close(users)
		for {
			c, failed := store.Accept()
			if failed != nil {
				return
			}
			here, _ := netip.ParseAddrPort(c.LocalAddr().String())
			there, _ := netip.ParseAddrPort(c.RemoteAddr().String())
			if s, failed := sockdiag.Find(there, here); failed == nil && s.Inode != 0 {
				users <- s.UID
			}
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(store.Addr().String())
	bait := exec.Command("sleep", "60")
	bait.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testkit.OtherUser, Gid: testkit.OtherUser}}
	bait.Env = []string{
		"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, "TORCH_WORKER_SERVER_SOCKET=" + socket,
		"TORCH_NCCL_DEBUG_INFO_PIPE_FILE=" + pipe, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=" + filepath.Join(dir, "dump"),
	}
	if err = bait.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bait.Process.Kill(); _ = bait.Wait() }()
	own := func(args ...string) *command { return (&lan{t: t}).run(exec.Command("cohort", args...)) }
	why := own("why", strconv.Itoa(bait.Process.Pid))
	if why.ends() != 0 {
		t.Errorf("%s", why)
	}
	_ = store.Close()
	asked := 0
	for uid := range users {
		if asked++; uid != testkit.OtherUser {
			t.Errorf("the store was asked by user %d", uid)
		}
	}
	if asked == 0 {
		t.Errorf("the store was not asked:\n%s", why)
	}
	if n, _ := unix.Read(fifo, make([]byte, 8)); came.Load() > 0 || n > 0 {
		t.Errorf("%d connections to root's socket, %d bytes in root's pipe", came.Load(), n)
	}

	job := other("run", "--no-live", "--evidence", "-", "--nproc-per-node", "2", "sh", "-c",
		`echo "pid=$$$$."; exec "$(readlink /proc/$PPID/exe)" store get --timeout 60s never`)
	testkit.Until(t, "both ranks wait, as root sees it", func() bool {
		_, rest, _ := strings.Cut(job.String(), "pid=")
		pid, _, started := strings.Cut(rest, ".")
		if !started {
			return false
		}
		c := own("why", pid)
		return c.ends() == 0 && strings.Contains(c.String(), "Ranks 0 and 1 wait for the key /never")
	})
	if err = job.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	job.ends()
}

// TestWhyIntoAContainer: what a process in another network names is asked there, not at the same address of this host.
func TestWhyIntoAContainer(t *testing.T) {
	testkit.NeedOtherUser(t)
	l := newLAN(t, 1)
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	server := l.start(1, "store", "serve", "--addr", addr)
	testkit.Until(t, "the store is ready", func() bool { return strings.Contains(server.String(), "ready on") })
	_, port, _ := net.SplitHostPort(addr)
	rank := l.enter(1, "unshare", "--mount", "env", "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port,
		path, "store", "get", "--timeout", "60s", "never")
	own := func(args ...string) *command { return (&lan{t: t}).run(exec.Command("cohort", args...)) }
	testkit.Until(t, "the store in the container says what the rank waits for", func() bool {
		c := own("why", strconv.Itoa(rank.cmd.Process.Pid))
		return c.ends() == 0 && strings.Contains(c.String(), "the key /never in the store")
	})
}
