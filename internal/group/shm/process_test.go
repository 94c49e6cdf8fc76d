// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// process is a rank in a separate process.
type process struct {
	cmd   *exec.Cmd
	stdin io.Writer
	lines chan string
}

// processes starts n ranks that play a role.
func processes(t *testing.T, n int, role string, env ...string) []*process {
	t.Helper()
	dir := t.TempDir()
	var out []*process
	for r := range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "COHORT_SHM_ROLE="+role, "COHORT_SHM_FOLDER="+dir, "COHORT_SHM_SIZE="+strconv.Itoa(n),
			"COHORT_SHM_RANK="+strconv.Itoa(r))
		cmd.Env = append(cmd.Env, env...)
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := &process{cmd: cmd, stdin: stdin, lines: make(chan string, 10000)}
		var wg sync.WaitGroup
		wg.Go(func() { p.read(pipe) })
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			wg.Wait()
			_ = cmd.Wait()
		})
		out = append(out, p)
	}
	return out
}

func (p *process) read(pipe io.Reader) {
	defer close(p.lines)
	for s := bufio.NewScanner(pipe); s.Scan(); {
		p.lines <- s.Text()
	}
}

// next returns the next line of output.
func (p *process) next(t *testing.T, limit time.Duration) string {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			t.Fatalf("rank (pid %d) ended without a line", p.cmd.Process.Pid)
		}
		return line
	case <-time.After(limit):
		t.Fatalf("rank (pid %d) printed nothing for %v", p.cmd.Process.Pid, limit)
	}
	return ""
}

func floats(n int, v float32) ([]float32, []byte) {
	f := make([]float32, n)
	for i := range f {
		f[i] = v
	}
	return f, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*n)
}

func init() { //nolint:gochecknoinits // roles refer to functions of this file
	// sums checks results in separate processes, small and large.
	roles["sums"] = func(e *Engine, _ []string) error {
		tag := uint32(0)
		for _, n := range []int{1, 100, 5000, 20000, 300000, 1000001} {
			for range 2 {
				f, b := floats(n, float32(e.Rank()+1))
				tag++
				if err := e.Run(context.Background(),
					&collective.Request{
						Kind: collective.AllReduce, Tag: tag, DType: tensor.Float32, Out: b,
						Timeout: 10 * time.Second,
					}); err != nil {
					return err
				}
				want := float32(e.Size() * (e.Size() + 1) / 2)
				if i := slices.IndexFunc(f, func(x float32) bool { return x != want }); i >= 0 {
					return fmt.Errorf("%d elements: element %d is %v, not %v", n, i, f[i], want)
				}
			}
		}
		fmt.Println("ok")
		return nil
	}
	// loop reduces for ever and reports how it ended.
	roles["loop"] = func(e *Engine, args []string) error {
		size, _ := strconv.Atoi(args[0])
		_, b := floats(size/4, 0)
		for tag := uint32(1); ; tag++ {
			err := e.Run(context.Background(), &collective.Request{Kind: collective.AllReduce, Tag: tag, DType: tensor.Float32, Out: b})
			if tag == 20 {
				fmt.Println("running")
			}
			if err == nil {
				continue
			}
			var de *cohort.Error
			if !errors.As(err, &de) {
				return err
			}
			fmt.Println("ended", de.Code, de.Rank, err)
			again := e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Tag: tag + 1})
			fmt.Println("again", cohort.CodeOf(again))
			return nil
		}
	}
	// talk sends a message around the ring of ranks for ever and reports how it ended.
	roles["talk"] = func(e *Engine, args []string) error {
		size, _ := strconv.Atoi(args[0])
		m := e.mesh
		send := &transport.Op{Peer: (e.Rank() + 1) % e.Size(), Buf: make([]byte, size)}
		recv := &transport.Op{Peer: (e.Rank() + e.Size() - 1) % e.Size(), Buf: make([]byte, size)}
		for turn := 0; ; turn++ {
			if turn == 20 {
				fmt.Println("running")
			}
			m.Recv(recv)
			m.Send(send)
			for _, op := range []*transport.Op{recv, send} {
				if err := m.Wait(context.Background(), op); err != nil {
					fmt.Println("ended", cohort.CodeOf(err), err)
					return nil
				}
			}
		}
	}
	roles["leave"] = func(e *Engine, _ []string) error {
		if err := e.Run(context.Background(), &collective.Request{Kind: collective.Barrier}); err != nil {
			return err
		}
		if e.Rank() == 0 {
			fmt.Println("left")
			return nil
		}
		err := e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Tag: 1})
		fmt.Println("ended", cohort.CodeOf(err), err)
		return nil
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 4} {
		for _, file := range []string{"", "COHORT_SHM_FILE=1"} {
			if n != 2 && file != "" {
				continue
			}
			t.Run(fmt.Sprintf("%d%s", n, file), func(t *testing.T) {
				t.Parallel()
				for r, p := range processes(t, n, "sums", file) {
					if line := p.next(t, 30*time.Second); line != "ok" {
						t.Errorf("rank %d: %s", r, line)
					}
				}
			})
		}
	}
}

// expectLost waits until every rank but the lost one has reported its loss and measures how long it took.
func expectLost(t *testing.T, ps []*process, lost int, since time.Time, limit time.Duration) {
	t.Helper()
	for r, p := range ps {
		if r == lost {
			continue
		}
		line := p.next(t, limit)
		took := time.Since(since)
		if want := fmt.Sprintf("ended peer lost %d ", lost); !strings.HasPrefix(line, want) {
			t.Errorf("rank %d after %v: %q, want %q", r, took, line, want)
		}
		if line := p.next(t, limit); line != "again aborted" {
			t.Errorf("rank %d: the next operation: %s", r, line)
		}
		t.Logf("rank %d knew after %v", r, took)
	}
}

func TestKilledRankIsNamed(t *testing.T) {
	t.Parallel()
	for _, size := range []int{4, 4 << 20} {
		for _, victim := range []int{0, 2} {
			ps := processes(t, 3, "loop", "COHORT_SHM_ARGS="+strconv.Itoa(size))
			for _, p := range ps {
				if line := p.next(t, 20*time.Second); line != "running" {
					t.Fatal(line)
				}
			}
			now := time.Now()
			if err := ps[victim].cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			expectLost(t, ps, victim, now, 5*time.Second)
		}
	}
}

func TestStoppedRankIsNamed(t *testing.T) {
	t.Parallel()
	ps := processes(t, 3, "loop", "COHORT_SHM_ARGS=1024", "COHORT_SHM_LIMIT=600ms")
	for _, p := range ps {
		if line := p.next(t, 20*time.Second); line != "running" {
			t.Fatal(line)
		}
	}
	now := time.Now()
	if err := ps[1].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	expectLost(t, ps, 1, now, 10*time.Second)
	// The stopped rank itself learns it when it continues.
	if err := ps[1].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if line := ps[1].next(t, 5*time.Second); !strings.HasPrefix(line, "ended peer lost 1 ") {
		t.Errorf("the stopped rank: %s", line)
	}
}

// TestKilledMessagePeer: messages to and from a dead or stopped rank end with its name, here on both its neighbours.
func TestKilledMessagePeer(t *testing.T) {
	t.Parallel()
	for _, size := range []int{4, 1 << 20} {
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			ps := processes(t, 3, "talk", "COHORT_SHM_ARGS="+strconv.Itoa(size), "COHORT_SHM_LIMIT=600ms")
			for _, p := range ps {
				if line := p.next(t, 20*time.Second); line != "running" {
					t.Fatal(line)
				}
			}
			now := time.Now()
			if err := ps[1].cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			// One neighbour names rank 1; the other may see the first one leave before its own message fails.
			named := 0
			for _, r := range []int{0, 2} {
				line := ps[r].next(t, 10*time.Second)
				if !strings.HasPrefix(line, "ended peer lost ") {
					t.Errorf("rank %d: %s", r, line)
				}
				if strings.Contains(line, "rank 1 ") {
					named++
				}
				t.Logf("%v, %d bytes: rank %d knew after %v", signal, size, r, time.Since(now))
			}
			if named == 0 {
				t.Errorf("%v: no rank names rank 1", signal)
			}
		}
	}
}

func TestRankThatLeft(t *testing.T) {
	t.Parallel()
	ps := processes(t, 3, "leave")
	for r, p := range ps {
		line := p.next(t, 20*time.Second)
		if r == 0 && line != "left" || r > 0 && (!strings.HasPrefix(line, "ended peer lost ") || !strings.Contains(line, "rank 0")) {
			t.Errorf("rank %d: %s", r, line)
		}
	}
}

func init() { //nolint:gochecknoinits // a role
	roles["bench"] = func(e *Engine, args []string) error {
		names := map[int]string{
			4: "4B", 1 << 10: "1KiB", 8 << 10: "8KiB", 16 << 10: "16KiB", 32 << 10: "32KiB", 64 << 10: "64KiB",
			1 << 20: "1MiB", 16 << 20: "16MiB", 64 << 20: "64MiB",
		}
		counts := map[int]int{
			4: 600, 1 << 10: 600, 8 << 10: 400, 16 << 10: 400, 32 << 10: 200, 64 << 10: 200, 1 << 20: 60,
			16 << 20: 8, 64 << 20: 4,
		}
		tag := uint32(0)
		_, a := floats(16<<20, 1e-9)
		peer := "shm"
		if slices.Contains(args, "direct") {
			s, err := e.Alloc(64 << 20)
			if err != nil {
				return err
			}
			b, _ := s.Bytes()
			copy(b, a)
			a, peer = b, "shm-direct"
		}
		all := make([]byte, 16<<20*e.Size())
		for i := range all {
			all[i] = 1
		}
		measure := func(name string, kind collective.Kind, size int, label string, n int) error {
			q := &collective.Request{Kind: kind, DType: tensor.Float32, Op: reduce.Sum, Timeout: time.Minute}
			lat := make([]float64, n)
			start, last := time.Now(), time.Now()
			for i := -max(n/10, 1); i < n; i++ {
				if i == 0 {
					if err := e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Tag: tag}); err != nil {
						return err
					}
					tag++
					start = time.Now()
					last = start
				}
				q.Tag, q.Out = tag, a[:size]
				if kind == collective.AllGather {
					q.In, q.Out = a[:size], all[:size*e.Size()]
				}
				if kind == collective.Broadcast {
					q.Root = int(tag) % e.Size()
				}
				tag++
				if err := e.Run(context.Background(), q); err != nil {
					return err
				}
				if i >= 0 {
					now := time.Now()
					lat[i] = float64(now.Sub(last).Nanoseconds())
					last = now
				}
			}
			mean := float64(last.Sub(start).Nanoseconds()) / float64(n)
			slices.Sort(lat)
			if e.Rank() == 0 {
				row := func(m string, v float64, unit string) {
					fmt.Printf("%-12s %-26s %10.4g %s\n", peer, fmt.Sprintf("%s.r%d%s.%s", name, e.Size(), label, m), v, unit)
				}
				row("p50", lat[n/2]/1e3, "us")
				if n >= 200 {
					row("p99", lat[int(float64(n)*0.99)]/1e3, "us")
				}
				if size >= 1<<16 {
					row("bw", float64(size)/mean, "GB/s")
				}
			}
			return nil
		}
		run := func(name string, kind collective.Kind, sizes ...int) error {
			for _, s := range sizes {
				if err := measure(name, kind, s, "."+names[s], counts[s]); err != nil {
					return err
				}
			}
			return nil
		}
		if err := measure("barrier", collective.Barrier, 0, "", 400); err != nil {
			return err
		}
		if err := run("allreduce", collective.AllReduce, 4, 1<<10, 8<<10, 16<<10, 32<<10, 64<<10, 1<<20, 16<<20, 64<<20); err != nil {
			return err
		}
		pingpong := func(size int) error {
			n := counts[size]
			send, recv := &transport.Op{Peer: 1 - e.Rank(), Buf: a[:size]}, &transport.Op{Peer: 1 - e.Rank(), Buf: all[:size]}
			lat := make([]float64, n)
			for i := -max(n/10, 1); i < n; i++ {
				start := time.Now()
				for turn := range 2 {
					op := recv
					if turn == e.Rank() {
						op = send
						e.mesh.Send(op)
					} else {
						e.mesh.Recv(op)
					}
					if err := e.mesh.Wait(context.Background(), op); err != nil {
						return err
					}
				}
				if i >= 0 {
					lat[i] = float64(time.Since(start).Nanoseconds())
				}
			}
			slices.Sort(lat)
			if e.Rank() == 0 {
				fmt.Printf("%-12s %-26s %10.4g us\n", peer, "pingpong.r2."+names[size]+".p50", lat[n/2]/2e3)
				fmt.Printf("%-12s %-26s %10.4g GB/s\n", peer, "pingpong.r2."+names[size]+".bw", float64(size)/(lat[n/2]/2))
			}
			return nil
		}
		if e.Size() == 2 {
			for _, size := range []int{4, 1 << 10, 64 << 10, 1 << 20, 16 << 20} {
				if err := pingpong(size); err != nil {
					return err
				}
			}
		}
		if peer == "shm" {
			if err := run("broadcast", collective.Broadcast, 4, 1<<10, 64<<10, 1<<20, 64<<20); err != nil {
				return err
			}
			if err := run("allgather", collective.AllGather, 4, 1<<10, 64<<10, 1<<20, 16<<20); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestMeasure prints the rows that mpi_coll prints, for a look at the numbers: COHORT_SHM_MEASURE=2 or 4 ranks.
func TestMeasure(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("COHORT_SHM_MEASURE"))
	if n == 0 {
		t.Skip("set COHORT_SHM_MEASURE to a number of ranks")
	}
	ps := processes(t, n, "bench")
	var out bytes.Buffer
	for line := range ps[0].lines {
		fmt.Fprintln(&out, line)
	}
	t.Logf("\n%s", out.String())
}
