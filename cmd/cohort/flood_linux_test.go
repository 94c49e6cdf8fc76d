// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

const (
	// floodEnv has the address that the process of a stranger connects to, floodSize is how often.
	floodEnv  = "COHORT_TEST_FLOOD"
	floodSize = 2000
	// floodPause is how long it waits before it connects again where it was disconnected: 2,000 attempts a second at most.
	floodPause = time.Second
	// servedWithin is five times what a busy machine should need.
	servedWithin = 25 * time.Second
)

// TestFloodProcess is the process of a stranger, and no test where there is none. It makes connections that say nothing, that send much
// without a line end, that say what a launcher does but no id, and that make TLS but prove nothing. It
// makes a new one for each that is closed.
func TestFloodProcess(t *testing.T) {
	addr := os.Getenv(floodEnv)
	if addr == "" {
		t.Skip("this is a process of another test")
	}
	junk := bytes.Repeat([]byte{0xff}, 1<<20) // no request of any protocol begins so
	var first sync.WaitGroup
	for i := range floodSize {
		first.Add(1)
		go func() {
			for once := sync.OnceFunc(first.Done); ; time.Sleep(floodPause) {
				c, err := net.DialTimeout("tcp", addr, 10*time.Second)
				if err != nil {
					continue
				}
				switch i % 4 {
				case 0:
					_, _ = c.Write(junk)
				case 1:
					_, _ = io.WriteString(c, `{"alive":true}`+"\n")
				case 2: // as far as the other side goes along
					_ = tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{jobtls.Launch}}).Handshake()
				}
				once()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}()
	}
	first.Wait()
	fmt.Println("flooded")
	select {}
}

// floodCost is what the connections of a stranger may cost, and memoryFactor how much more memory programs need in these tests than those
// of users.
const floodCost = 10 << 20

var memoryFactor = 1

// residentSize returns the memory that a process has, VmRSS, or has had at most, VmHWM, in bytes.
func residentSize(t *testing.T, pid int, what string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), what+":")
	kB, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kB << 10
}

// TestFlood: while a stranger, on another machine or on this one, holds 2,000 connections to the rendezvous, they cost the launcher at most
// 10 MB, and the second node joins soon.
func TestFlood(t *testing.T) {
	t.Run("another machine", func(t *testing.T) {
		l := newLAN(t, 2)
		flood(t, "10.77.0.1:29400", [3]func(...string) *command{
			func(args ...string) *command { return l.enter(0, args...) },
			func(args ...string) *command { return l.enter(1, args...) },
			func(args ...string) *command { return l.enter(2, args...) },
		})
	})
	t.Run("this machine", func(t *testing.T) {
		here := func(args ...string) *command { return (&lan{t: t}).run(exec.Command(args[0], args[1:]...)) }
		flood(t, "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t)), [3]func(...string) *command{here, here, here})
	})
}

// TestFloodStore: while a stranger holds 2,000 connections to a store that may have 1,024 descriptors, clients are served, and the
// connections cost at most 10 MB. Those that say nothing are closed as they become too many.
func TestFloodStore(t *testing.T) {
	here := func(args ...string) *command { return (&lan{t: t}).run(exec.Command(args[0], args[1:]...)) }
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	server := here("sh", "-c", "ulimit -n 1024; exec "+path+" store serve --addr "+addr)
	first := here(path, "store", "set", "--addr", addr, "--timeout", "20s", "key", "value")
	if first.ends() != 0 {
		t.Fatalf("%s\n%s", first, server)
	}
	waiting := here(path, "store", "get", "--addr", addr, "--timeout", "60s", "later")
	before := residentSize(t, server.cmd.Process.Pid, "VmRSS")
	t.Setenv(floodEnv, addr)
	stranger := here(os.Args[0], "-test.run=^TestFloodProcess$")
	testkit.Until(t, "2,000 connections are made", func() bool { return strings.Contains(stranger.String(), "flooded") })
	began := time.Now()
	for _, args := range [][]string{{"set", "later", "value"}, {"get", "key"}} {
		c := here(append([]string{path, "store", args[0], "--addr", addr, "--timeout", "60s"}, args[1:]...)...)
		if c.ends() != 0 {
			t.Fatalf("store %s: %s\n%s", strings.Join(args, " "), c, server)
		}
	}
	took, grown := time.Since(began), residentSize(t, server.cmd.Process.Pid, "VmHWM")-before
	t.Logf("the server has grown by %d kB, and two clients were served within %v", grown>>10, took)
	if waiting.ends() != 0 || took > servedWithin || grown > floodCost*memoryFactor {
		t.Errorf("after %v and with %d bytes: %s\n%s", took, grown, waiting, server)
	}
}

// flood is the test on machines: the first is the stranger's.
func flood(t *testing.T, endpoint string, machines [3]func(args ...string) *command) {
	t.Helper()
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "worlds")
	node := func(i int) *command {
		run := fmt.Sprintf(`ulimit -n 1024; exec %s run --nnodes 2 --node-rank %d --rdzv-id flooded --rdzv-backend c10d `+
			`--rdzv-endpoint %s --evidence - sh -c 'echo world=$WORLD_SIZE >> %s'`, path, i-1, endpoint, file)
		return machines[i]("sh", "-c", run)
	}
	first := node(1)
	testkit.Until(t, "the rendezvous listens", func() bool {
		return machines[1]("sh", "-c", "cat /proc/net/tcp | grep -qi ':"+portHex(t, endpoint)+" 00000000:0000 0A'").ends() == 0
	})
	time.Sleep(time.Second) // what it allocates at its start
	before := residentSize(t, first.cmd.Process.Pid, "VmRSS")

	t.Setenv(floodEnv, endpoint)
	stranger := machines[0](os.Args[0], "-test.run=^TestFloodProcess$")
	testkit.Until(t, "2,000 connections are made", func() bool { return strings.Contains(stranger.String(), "flooded") })
	grown, began := residentSize(t, first.cmd.Process.Pid, "VmHWM")-before, time.Now()
	second := node(2)
	for i, c := range []*command{first, second} {
		if code := c.ends(); code != 0 {
			t.Errorf("node %d: exit code %d\n%s", i, code, c)
		}
	}
	took := time.Since(began)
	t.Logf("the launcher has grown by %d kB, and the second node has joined and ended within %v", grown>>10, took)
	if grown > floodCost*memoryFactor {
		t.Errorf("2,000 connections cost the launcher %d bytes", grown)
	}
	if took > servedWithin {
		t.Errorf("the second node has joined after %v", took)
	}
	if worlds, err := os.ReadFile(file); err != nil || string(worlds) != "world=2\nworld=2\n" {
		t.Errorf("%q, %v", worlds, err)
	}
}

// portHex writes the port of an address as /proc/net/tcp does.
func portHex(t *testing.T, addr string) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%04X", n)
}
