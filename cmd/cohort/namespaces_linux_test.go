// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

// lan is a network of machines that are namespaces of this one. Machine 0 is the switch with the address 10.77.0.100,
// the others are 10.77.0.N.
type lan struct {
	t    *testing.T
	name string
	// token is the file with the token of the jobs on it, id what names it.
	token, id string
}

// newLAN makes machines 1 to n, or skips where that is not allowed.
func newLAN(t *testing.T, n int) *lan {
	t.Helper()
	l := &lan{t: t, name: fmt.Sprintf("cohort%d-%d", os.Getpid(), time.Now().UnixNano()%100000)}
	l.token, l.id = newToken(t)
	if out, err := exec.Command("ip", "netns", "add", l.machine(0)).CombinedOutput(); err != nil {
		t.Skipf("this machine cannot make network namespaces: %v %s", err, out)
	}
	t.Cleanup(func() {
		for i := range n + 1 {
			_ = exec.Command("ip", "netns", "del", l.machine(i)).Run()
		}
	})
	set := func(args ...string) {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("this machine cannot make a network: ip %s: %v %s", strings.Join(args, " "), err, out)
		}
	}
	set("-n", l.machine(0), "link", "add", "br0", "type", "bridge")
	set("-n", l.machine(0), "addr", "add", "10.77.0.100/24", "dev", "br0")
	set("-n", l.machine(0), "link", "set", "br0", "up")
	set("-n", l.machine(0), "link", "set", "lo", "up")
	for i := 1; i <= n; i++ {
		set("netns", "add", l.machine(i))
		set("-n", l.machine(0), "link", "add", fmt.Sprint("v", i), "type", "veth", "peer", "name", "eth0", "netns", l.machine(i))
		set("-n", l.machine(0), "link", "set", fmt.Sprint("v", i), "master", "br0", "up")
		set("-n", l.machine(i), "addr", "add", fmt.Sprintf("10.77.0.%d/24", i), "dev", "eth0")
		set("-n", l.machine(i), "link", "set", "eth0", "up")
		set("-n", l.machine(i), "link", "set", "lo", "up")
	}
	if out, err := exec.Command("nsenter", "--net=/run/netns/"+l.machine(1), "true").CombinedOutput(); err != nil {
		t.Skipf("this machine cannot enter a network namespace: %v %s", err, out)
	}
	return l
}

// cohortWith is a command with one more variable in its environment.
func cohortWith(variable string, args ...string) *exec.Cmd {
	cmd := exec.Command("cohort", args...)
	cmd.Env = append(os.Environ(), variable)
	return cmd
}

// newToken makes a token, and returns its file and id.
func newToken(t *testing.T) (file, id string) {
	t.Helper()
	token, err := jobtoken.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "job.token")
	if err = os.WriteFile(file, []byte(token.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, token.ID()
}

func (l *lan) machine(i int) string { return fmt.Sprintf("%s-%d", l.name, i) }

// cut takes a machine off the network.
func (l *lan) cut(i int) {
	l.t.Helper()
	if out, err := exec.Command("ip", "-n", l.machine(0), "link", "set", fmt.Sprint("v", i), "down").CombinedOutput(); err != nil {
		l.t.Fatalf("machine %d cannot be cut off: %v %s", i, err, out)
	}
}

// heal puts a machine back on the network.
func (l *lan) heal(i int) {
	l.t.Helper()
	if out, err := exec.Command("ip", "-n", l.machine(0), "link", "set", fmt.Sprint("v", i), "up").CombinedOutput(); err != nil {
		l.t.Fatalf("machine %d cannot be put back: %v %s", i, err, out)
	}
}

// command is one that runs on a machine.
type command struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *command) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(b)
}

func (c *command) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// start runs cohort on a machine.
func (l *lan) start(i int, args ...string) *command {
	l.t.Helper()
	path, err := exec.LookPath("cohort")
	if err != nil {
		l.t.Fatal(err)
	}
	return l.enter(i, append([]string{path}, args...)...)
}

// enter runs a command on a machine.
func (l *lan) enter(i int, args ...string) *command {
	l.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + l.machine(i)}, args...)...)
	cmd.Env = append(os.Environ(), "COHORT_TOKEN_FILE="+l.token)
	return l.run(cmd)
}

// run runs a command, which ends with the test.
func (l *lan) run(cmd *exec.Cmd) *command {
	l.t.Helper()
	c := &command{t: l.t, done: make(chan struct{}), cmd: cmd}
	c.cmd.Stdout, c.cmd.Stderr = c, c
	if err := c.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
	})
	go func() {
		defer close(c.done)
		_ = c.cmd.Wait()
	}()
	return c
}

// ends waits for the end and returns the exit code.
func (c *command) ends() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(90 * time.Second):
		c.t.Fatalf("it does not end:\n%s", c)
	}
	return c.cmd.ProcessState.ExitCode()
}

// until waits until the file has a text that matches.
func (l *lan) until(file, pattern string) {
	l.t.Helper()
	for limit := time.Now().Add(90 * time.Second); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil && regexp.MustCompile(pattern).Match(b) {
			return
		}
	}
	b, _ := os.ReadFile(file)
	l.t.Fatalf("no %q in:\n%s", pattern, b)
}

// node starts a launcher whose worker notes the size of the world, and waits for ever in one of three nodes.
func (l *lan) node(i int, endpoint, file string) *command {
	script := fmt.Sprintf(
		`echo machine=%d world=$$WORLD_SIZE rank=$$RANK >> %s; if [ $$WORLD_SIZE = 3 ]; then exec sleep 1000; fi`, i, file)
	return l.start(i, "run", "--nnodes", "1:3", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
		"--evidence", "-",
		"--rdzv-conf", "last_call_timeout=2,heartbeat_timeout=2", "sh", "-c", script)
}

// TestCutNode: a node whose network is gone is given up by the others, which go on; it ends its workers and says why.
func TestCutNode(t *testing.T) {
	t.Parallel()
	l := newLAN(t, 3)
	file := filepath.Join(t.TempDir(), "worlds")
	nodes := []*command{nil}
	for i := 1; i <= 3; i++ {
		nodes = append(nodes, l.node(i, "10.77.0.1:29400", file))
	}
	l.until(file, `(?s)(world=3.*){3}`)
	l.cut(3)
	for _, i := range []int{1, 2} {
		if code := nodes[i].ends(); code != 0 {
			t.Errorf("machine %d: exit code %d\n%s", i, code, nodes[i])
		}
	}
	l.until(file, `machine=1 world=2`)
	open := "protected by TLS, with the token " + l.id + "; the connections among its ranks (gloo, NCCL, TensorPipe, TCP of Go ranks)"
	for i := 1; i <= 3; i++ { // the one that hosts the rendezvous says so, once
		if n := strings.Count(nodes[i].String(), open); n != map[int]int{1: 1}[i] {
			t.Errorf("machine %d says %d times what is protected:\n%s", i, n, nodes[i])
		}
	}
	if code := nodes[3].ends(); code != 1 || !strings.Contains(nodes[3].String(),
		"the launcher that hosts the rendezvous at 10.77.0.1:29400 is lost: it has not responded for 2s") {
		t.Errorf("machine 3: exit code %d\n%s", code, nodes[3])
	}
}

// TestCutAndHealed: a network that is gone for less than heartbeat_timeout, of the host or of another node, changes nothing.
func TestCutAndHealed(t *testing.T) {
	t.Parallel()
	l := newLAN(t, 2)
	dir := t.TempDir()
	file, done := filepath.Join(dir, "worlds"), filepath.Join(dir, "go")
	var nodes []*command
	for i := 1; i <= 2; i++ {
		script := fmt.Sprintf(`echo machine=%d world=$$WORLD_SIZE >> %s; while [ ! -e %s ]; do sleep 0.1; done`, i, file, done)
		nodes = append(nodes, l.start(i, "run", "--nnodes", "2", "--max-restarts", "3", "--rdzv-backend", "c10d",
			"--rdzv-endpoint", "10.77.0.1:29400", "--evidence", "-",
			"--rdzv-conf", "heartbeat_timeout=60", "sh", "-c", script))
	}
	l.until(file, `(?s)(world=2.*){2}`)
	for _, i := range []int{2, 1} {
		l.cut(i)
		time.Sleep(500 * time.Millisecond)
		l.heal(i)
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if code := n.ends(); code != 0 {
			t.Errorf("machine %d: exit code %d\n%s", i+1, code, n)
		}
	}
	if worlds, err := os.ReadFile(file); err != nil || strings.Count(string(worlds), "\n") != 2 {
		t.Errorf("the attempts were\n%s%v", worlds, err)
	}
}

// TestWhyWithoutANode: "cohort why" names the node that does not answer because its network is gone, and since when.
func TestWhyWithoutANode(t *testing.T) {
	t.Parallel()
	l := newLAN(t, 2)
	file, job := filepath.Join(t.TempDir(), "pids"), l.machine(0)
	for i := 1; i <= 2; i++ {
		script := fmt.Sprintf(`echo machine=%d >> %s; exec sleep 1000`, i, file)
		l.start(i, "run", "--nnodes", "2", "--node-rank", strconv.Itoa(i-1), "--rdzv-id", job, "--rdzv-backend", "c10d",
			"--rdzv-endpoint", "10.77.0.1:29400", "--evidence", "-",
			"--rdzv-conf", "heartbeat_timeout=600", "sh", "-c", script)
	}
	l.until(file, `(?s)(machine.*){2}`)
	l.cut(2)
	why := l.start(1, "why", job)
	why.ends()
	want := regexp.MustCompile(
		`only 1 of the 2 nodes have answered, and nothing is known of node 1 on \S+ \(rank 1\), whose launcher \(process \d+\) has ` +
			`not responded for \d+ s`)
	if !want.MatchString(why.String()) {
		t.Errorf("it says\n%s", why)
	}
}

// TestCutHost: with a store as the endpoint, a host of the rendezvous that is cut off or killed is replaced. One that is cut
// off begins no attempt of its own, though one node would be enough for it.
func TestCutHost(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cut", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			l := newLAN(t, 3)
			file := filepath.Join(t.TempDir(), "worlds")
			const endpoint = "10.77.0.100:29400"
			l.start(0, "store", "serve", "--addr", endpoint)
			first := l.node(1, endpoint, file)
			for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				if l.start(0, "store", "get", "--addr", endpoint, "--timeout", "5s", "cohort/run/"+l.id+"/host").ends() == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("no host is chosen:\n%s", first)
				}
			}
			second, third := l.node(2, endpoint, file), l.node(3, endpoint, file)
			l.until(file, `(?s)(world=3.*){3}`)
			if how == "cut" {
				l.cut(1)
			} else {
				_ = first.cmd.Process.Signal(syscall.SIGKILL)
			}
			for _, c := range []*command{second, third} {
				if code := c.ends(); code != 0 || !strings.Contains(c.String(), "is lost; another one takes its place") {
					t.Errorf("exit code %d\n%s", code, c)
				}
			}
			if code := first.ends(); code == 0 {
				t.Errorf("the host that was lost succeeds:\n%s", first)
			}
			worlds, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			// Before the others came, it may have begun alone.
			if _, after, _ := strings.Cut(string(worlds), "world=3"); strings.Contains(after, "machine=1 world=1") ||
				!strings.Contains(after, "machine=2 world=2") {
				t.Errorf("the attempts were\n%s", worlds)
			}
		})
	}
}
