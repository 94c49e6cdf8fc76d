// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

const (
	// recordEnv has the text that the process of a recorder looks for on the network.
	recordEnv = "COHORT_TEST_RECORD"
	// allProtocols is ETH_P_ALL in the order of the network.
	allProtocols = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
)

// TestRecordProcess is a process that sees all that a switch forwards, and no test where there is none. It says how many packets it has
// seen, and which had the text.
func TestRecordProcess(t *testing.T) {
	text := os.Getenv(recordEnv)
	if text == "" {
		t.Skip("this is a process of another test")
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, allProtocols)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	fmt.Println("records")
	packet, packets := make([]byte, 1<<17), 0
	for {
		n, _, err := unix.Recvfrom(fd, packet, 0)
		if err != nil {
			continue
		}
		if packets++; packets%16 == 0 {
			fmt.Println("packets", packets)
		}
		if bytes.Contains(packet[:n], []byte(text)) {
			fmt.Println("in plain text")
		}
	}
}

// storeJob is a job on two machines. Its workers pass a value on through the store again and again, and wait for the end of the test.
type storeJob struct {
	l        *lan
	dir      string
	launcher [3]*command
}

const marker = "a-value-that-nothing-else-on-the-network-has"

func startStoreJob(t *testing.T, l *lan, options ...string) *storeJob {
	t.Helper()
	j := &storeJob{l: l, dir: t.TempDir()}
	worker := fmt.Sprintf(`echo $COHORT_STORE > %[1]s/store$GROUP_RANK; env > %[1]s/env$GROUP_RANK; `+
		`cohort store set value$GROUP_RANK %[2]s || exit 5; cohort store get value$((1-$GROUP_RANK)) >/dev/null || exit 6; `+
		`echo done > %[1]s/done$GROUP_RANK; while [ ! -e %[1]s/end ]; do sleep 0.1; done`, j.dir, marker)
	file := filepath.Join(j.dir, "worker.sh")
	if err := os.WriteFile(file, []byte(worker), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		j.launcher[i] = l.start(i, append([]string{
			"run", "--nnodes", "2", "--node-rank", strconv.Itoa(i - 1), "--rdzv-id", "guarded", "--rdzv-backend", "c10d",
			"--rdzv-endpoint", "10.77.0.1:29400", "--rdzv-conf", "heartbeat_timeout=60", "--evidence", "-",
		}, append(options, "sh", file)...)...)
	}
	l.until(filepath.Join(j.dir, "done0"), "done")
	l.until(filepath.Join(j.dir, "done1"), "done")
	return j
}

// read returns a file that the worker of a machine has written.
func (j *storeJob) read(name string, machine int) string {
	j.l.t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, name+strconv.Itoa(machine-1)))
	if err != nil {
		j.l.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// gateway is the address at which the worker of a machine finds the store.
func (j *storeJob) gateway(machine int) string {
	j.l.t.Helper()
	for line := range strings.Lines(j.read("env", machine)) {
		if port, found := strings.CutPrefix(line, "MASTER_PORT="); found {
			return "127.0.0.1:" + strings.TrimSpace(port)
		}
	}
	j.l.t.Fatal("a worker without MASTER_PORT")
	return ""
}

// end has the workers end.
func (j *storeJob) end() {
	j.l.t.Helper()
	if err := os.WriteFile(filepath.Join(j.dir, "end"), nil, 0o600); err != nil {
		j.l.t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		if code := j.launcher[i].ends(); code != 0 {
			j.l.t.Errorf("machine %d: exit code %d\n%s", i, code, j.launcher[i])
		}
	}
}

// beyondLoopback are the ports of a machine that others can connect to.
func (l *lan) beyondLoopback(i int) (ports []string) {
	l.t.Helper()
	table := l.enter(i, "cat", "/proc/net/tcp", "/proc/net/tcp6")
	table.ends()
	for line := range strings.Lines(table.String()) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != "0A" || strings.HasSuffix(f[1][:8], "7F") || strings.HasPrefix(f[1], strings.Repeat("0", 24)+"01000000:") {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		n, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			l.t.Fatal(line)
		}
		ports = append(ports, strconv.FormatUint(n, 10))
	}
	slices.Sort(ports)
	return ports
}

// TestStoreOverTLS: with a token nothing that workers keep in the store crosses the network in plain text, and no port beyond loopback
// answers a client of the store; without a token both are so, which shows that the test sees it. A stranger at the store's port is
// refused, and the launcher says so once.
func TestStoreOverTLS(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{"token": nil, "plain": {"--insecure-plaintext"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLAN(t, 3)
			plain := name == "plain"
			recorder := l.record(marker)
			j := startStoreJob(t, l, options...)
			testkit.Until(t, "packets are recorded", func() bool { return strings.Contains(recorder.String(), "packets") })
			if seen := strings.Contains(recorder.String(), "in plain text"); seen != plain {
				t.Errorf("the value is on the network in plain text: %v", seen)
			}
			store := strings.TrimPrefix(j.read("store", 2), "tls://10.77.0.1:")
			ports := l.beyondLoopback(1)
			if want := slices.Sorted(slices.Values([]string{"29400", store})); !plain && !slices.Equal(ports, want) || len(ports) != 2 {
				t.Errorf("machine 1 listens at the ports %v beyond loopback", ports)
			}
			if more := l.beyondLoopback(2); len(more) > 0 {
				t.Errorf("machine 2 listens at the ports %v beyond loopback", more)
			}
			read := 0
			for _, port := range append(ports, store) {
				get := l.start(3, "store", "get", "--addr", "10.77.0.1:"+port, "--timeout", "1s", "value0")
				if get.ends() == 0 && strings.Contains(get.String(), marker) {
					read++
				}
			}
			if plain != (read > 0) {
				t.Errorf("a stranger reads the value %d times", read)
			}
			said := strings.Count(j.launcher[1].String(), "has connected to the store of the job without TLS and was refused")
			if said != map[bool]int{false: 1}[plain] {
				t.Errorf("the host says %d times that a stranger was refused:\n%s", said, j.launcher[1])
			}
			for i := 1; i <= 2 && !plain; i++ {
				if env := j.read("env", i); !strings.Contains(env, "MASTER_ADDR=127.0.0.1\n") ||
					!strings.Contains(env, "TORCHELASTIC_USE_AGENT_STORE=True") {
					t.Errorf("machine %d has\n%s", i, env)
				}
			}
			if !plain { // who waits is asked of the gateway
				l.start(2, "store", "get", "--addr", j.gateway(2), "--timeout", "60s", "never")
				testkit.Until(t, "the wait is shown", func() bool {
					top := l.start(2, "store", "top", "--addr", j.gateway(2), "--once", "--json")
					return top.ends() == 0 && strings.Contains(top.String(), `"keys":["never"]`)
				})
			}
			j.end()
		})
	}
}

// record starts a recorder on the switch.
func (l *lan) record(text string) *command {
	l.t.Helper()
	cmd := exec.Command("nsenter", "--net=/run/netns/"+l.machine(0), os.Args[0], "-test.run=^TestRecordProcess$")
	cmd.Env = append(os.Environ(), recordEnv+"="+text)
	c := l.run(cmd)
	testkit.Until(l.t, "the recorder runs", func() bool { return strings.Contains(c.String(), "records") })
	return c
}

// TestFloodStoreOfNodes: while a stranger holds 2,000 connections to the store of a job with a token, they cost the launcher at most 10 MB,
// and a launcher whose connection is cut reaches the store again.
func TestFloodStoreOfNodes(t *testing.T) {
	l := newLAN(t, 2)
	j := startStoreJob(t, l)
	store := strings.TrimPrefix(j.read("store", 2), "tls://")
	pid := j.launcher[1].cmd.Process.Pid
	before := residentSize(t, pid, "VmRSS")
	t.Setenv(floodEnv, store)
	stranger := l.enter(0, os.Args[0], "-test.run=^TestFloodProcess$")
	testkit.Until(t, "2,000 connections are made", func() bool { return strings.Contains(stranger.String(), "flooded") })
	grown := residentSize(t, pid, "VmHWM") - before
	t.Logf("the launcher has grown by %d kB", grown>>10)
	if grown > floodCost*memoryFactor {
		t.Errorf("2,000 connections cost the launcher %d bytes", grown)
	}
	gateway := j.gateway(2)
	l.cut(2)
	testkit.Until(t, "the gateway misses the store", func() bool {
		return strings.Contains(j.launcher[2].String(), "the store is not reached")
	})
	l.heal(2)
	began := time.Now()
	get := l.start(2, "store", "get", "--addr", gateway, "--timeout", "60s", "value0")
	if get.ends() != 0 || !strings.Contains(get.String(), marker) || time.Since(began) > servedWithin {
		t.Errorf("after %v: %s\n%s", time.Since(began), get, j.launcher[2])
	}
	t.Logf("answered within %v", time.Since(began))
	j.end()
}
