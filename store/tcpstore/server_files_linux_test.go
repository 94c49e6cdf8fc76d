// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

const fewFilesEnv = "COHORT_TEST_FEW_FILES"

// TestServerFewFilesChild is the process of TestServerOutOfFiles: a server that may open few files.
func TestServerFewFilesChild(t *testing.T) {
	if os.Getenv(fewFilesEnv) == "" {
		return // not the child
	}
	s, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: uint64(countFDs() + 20), Max: uint64(countFDs() + 20)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\naddr %s\n", s.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Close()
}

// TestServerOutOfFiles connects more clients than the server's process has descriptors for. Those who are in are served;
// the others wait and come in when some leave; the server does not burn its processor meanwhile.
func TestServerOutOfFiles(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServerFewFilesChild$", "-test.v")
	cmd.Env = append(os.Environ(), fewFilesEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}()
	addr := ""
	lines := bufio.NewScanner(out)
	for addr == "" && lines.Scan() {
		addr, _ = strings.CutPrefix(lines.Text(), "addr ")
		if !strings.Contains(addr, ":") {
			addr = ""
		}
	}
	asked := map[net.Conn]bool{}
	served := func(c net.Conn, patience time.Duration) bool {
		_ = c.SetDeadline(time.Now().Add(patience))
		var reply [8]byte
		if asked[c] {
			_, _ = c.Write(wire.AppendPlain(nil, wire.Legacy, wire.NumKeys))
		}
		asked[c] = true
		_, err := io.ReadFull(c, reply[:])
		return err == nil
	}
	var conns []net.Conn
	for range 40 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(wire.AppendPlain(nil, wire.Legacy, wire.NumKeys)) // one that says nothing would make room
		conns = append(conns, c)
	}
	if !served(conns[0], 20*time.Second) {
		t.Fatal("the first client is not served")
	}
	last := conns[len(conns)-1]
	if served(last, 300*time.Millisecond) {
		t.Skip("the limit of open files has no effect here")
	}
	before := cpuTime(t, cmd.Process.Pid)
	time.Sleep(500 * time.Millisecond)
	if used := cpuTime(t, cmd.Process.Pid) - before; used > 25 {
		t.Errorf("the server used %d ticks of processor time in half a second of waiting", used)
	}
	if !served(conns[0], 20*time.Second) {
		t.Fatal("the first client is not served any more")
	}
	for _, c := range conns[1:30] {
		_ = c.Close()
	}
	if !served(last, 20*time.Second) {
		t.Error("a client that waited is never served")
	}
}

// cpuTime returns the processor time of a process in ticks of 10 ms.
func cpuTime(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	var user, system int
	f := strings.Fields(rest)
	if _, err := fmt.Sscan(f[11], &user); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(f[12], &system); err != nil {
		t.Fatal(err)
	}
	return user + system
}
