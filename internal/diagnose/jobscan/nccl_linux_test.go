// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cohort-dist/cohort/internal/diagnose/ncclras"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

// TestNCCL: ranks that have loaded NCCL are asked through it, and what it says is in the proof. The server here stands for NCCL's thread.
func TestNCCL(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skip("Python is not installed")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"libnccl.so.2": "stands for NCCL",
		"rank.py": `import mmap, os, signal
loaded = mmap.mmap(os.open(os.path.join(os.path.dirname(__file__), "libnccl.so.2"), os.O_RDONLY), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
signal.pause()
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pid := running(t, 1, "/usr/bin/python3", filepath.Join(dir, "rank.py"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for _, member := range []int{7, 8, pid} { // processes of other jobs have the same port: they answer first
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewScanner(conn)
			for _, answer := range []string{
				"SERVER PROTOCOL 2\n", "OK\n", "OK\n",
				`{"communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": 0, "pid": ` + strconv.Itoa(member) + `}],
				"missing_ranks": [{"rank": 1, "host": "10.0.0.3", "pid": 77, "unresponsive": true}]}]}`,
			} {
				in.Scan()
				_, _ = conn.Write([]byte(answer))
			}
			_ = conn.Close()
		}
	}()
	r := Describe(0, pid)
	r.env["NCCL_RAS_ADDR"] = l.Addr().String()
	job := Job{World: 1, Ranks: []Rank{r}}
	if seen := Glance(t.Context(), job, time.Millisecond); seen.NCCL != nil { // the server answers once
		t.Errorf("the ranks alone: %q", seen.NCCL)
	}
	v := verdict.Judge(Examine(t.Context(), job, time.Millisecond))
	want := "NCCL, communicator 0x1 of 2 ranks: rank 1 (host 10.0.0.3, process 77) does not answer"
	if !strings.Contains(strings.Join(v.Proof, "\n"), want) {
		t.Errorf("the proof is %q, want %q", v.Proof, want)
	}
}

// TestBoundedLines: a report of many ranks does not make an answer too long to be sent.
func TestBoundedLines(t *testing.T) {
	t.Parallel()
	lines := boundedLines(slices.Repeat([]string{strings.Repeat("é", 1000)}, 5000))
	if len(lines) != maxNCCLLines+1 || len(lines[0]) > maxNCCLBytes+3 || !utf8.ValidString(lines[0]) ||
		lines[maxNCCLLines] != "NCCL: and 4985 more" {
		t.Errorf("%d lines, the first of %d bytes, the last is %q", len(lines), len(lines[0]), lines[len(lines)-1])
	}
	if got := boundedLines([]string{"one"}); !slices.Equal(got, []string{"one"}) || boundedLines(nil) != nil {
		t.Errorf("one line: %q, none: %q", got, boundedLines(nil))
	}
}

// TestStartedBy: what NCCL counts by the rank of a communicator and by process is known by the rank of the job.
func TestStartedBy(t *testing.T) {
	t.Parallel()
	rank := func(rank, pid, n int) ncclras.Rank {
		return ncclras.Rank{Rank: rank, PID: pid, Counts: map[string]int{"AllReduce": n}}
	}
	started := func(n int, ranks ...int) verdict.Started {
		return verdict.Started{Counts: map[string]int{"AllReduce": n}, Ranks: ranks}
	}
	for name, c := range map[string]struct {
		communicator ncclras.Communicator
		pids         map[int]int
		want         []verdict.Started
	}{
		"all ranks": {
			ncclras.Communicator{
				Size:  3,
				Ranks: []ncclras.Rank{rank(0, 70, 6), rank(1, 71, 5), rank(2, 72, 6)},
			},
			map[int]int{70: 0, 71: 1, 72: 2},
			[]verdict.Started{started(6, 0, 2), started(5, 1)},
		},
		"all, one on this host": {
			ncclras.Communicator{
				Size:  3,
				Ranks: []ncclras.Rank{rank(0, 71, 6), rank(1, 71, 5), rank(2, 72, 6)},
			},
			map[int]int{71: 1},
			[]verdict.Started{started(6, 0, 2), started(5, 1)},
		},
		"all in another order": {ncclras.Communicator{
			Size:  3,
			Ranks: []ncclras.Rank{rank(0, 71, 6), rank(1, 70, 5), rank(2, 72, 6)},
		}, map[int]int{70: 0, 71: 1, 72: 2}, nil},
		"some": {
			ncclras.Communicator{Size: 2, Ranks: []ncclras.Rank{rank(0, 70, 6), rank(1, 72, 5)}},
			map[int]int{70: 0, 71: 1, 72: 2},
			[]verdict.Started{started(6, 0), started(5, 2)},
		},
		"some, a process elsewhere has the same number": {ncclras.Communicator{
			Size:  2,
			Ranks: []ncclras.Rank{rank(0, 70, 6), {Rank: 1, PID: 70, Host: "10.0.0.3"}},
		}, map[int]int{70: 0}, nil},
		"some, twice": {
			ncclras.Communicator{Size: 2, Ranks: []ncclras.Rank{rank(0, 70, 6), rank(1, 70, 5)}},
			map[int]int{70: 0},
			nil,
		},
		"several containers": {
			ncclras.Communicator{Size: 2, Ranks: []ncclras.Rank{rank(0, 70, 6), rank(1, 71, 5)}},
			map[int]int{70: -1, 71: 1},
			nil,
		},
		"none of a kind": {
			ncclras.Communicator{Size: 2, Ranks: []ncclras.Rank{rank(0, 70, 0), {Rank: 1, PID: 71}}},
			map[int]int{70: 0, 71: 1},
			[]verdict.Started{{Counts: map[string]int{}, Ranks: []int{0, 1}}},
		},
		"some elsewhere": {ncclras.Communicator{Size: 2, Ranks: []ncclras.Rank{rank(0, 70, 6), rank(1, 99, 5)}}, map[int]int{70: 0}, nil},
	} {
		if got := startedBy(c.communicator, 3, c.pids, func(host string) bool { return host == "" }); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestProcFiles: the number of a process in its container, and whether it uses a GPU, from files of the kernel.
func TestProcFiles(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for pid, of := range map[int]struct{ status, device string }{
		7: {"Name:\tpython3\nNSpid:\t7\t3\nThreads:\t1\n", "/dev/nvidia-uvm"},
		8: {"Name:\tpython3\nNSpid:\t8\n", "/dev/null"},
		9: {"Name:\tpython3\nNSpid:\n", "/dev/kfd"},
	} {
		folder := filepath.Join(proc, strconv.Itoa(pid))
		err := errors.Join(os.MkdirAll(filepath.Join(folder, "fd"), 0o700),
			os.WriteFile(filepath.Join(folder, "status"), []byte(of.status), 0o600),
			os.Symlink(of.device, filepath.Join(folder, "fd", "5")))
		if err != nil {
			t.Fatal(err)
		}
	}
	for pid, want := range map[int]struct {
		own int
		gpu bool
	}{7: {3, true}, 8: {8, false}, 9: {9, true}, 10: {10, false}} {
		if own, gpu := ownPID(proc, pid), usesGPU(proc, pid); own != want.own || gpu != want.gpu {
			t.Errorf("process %d: %d, %v, want %+v", pid, own, gpu, want)
		}
	}
}
