// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pystack compares the reader of Python stacks with what Python itself says, on every installed version.
package pystack

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"io"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

//go:embed victim.py
var victim string

type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start runs the script on the Python of a PyTorch version and waits until it is ready.
func start(t *testing.T, torch *torchtest.Torch, args ...string) *process {
	t.Helper()
	command := torch.Command()
	p := &process{Cmd: exec.CommandContext(t.Context(), command[0], append(append(command[1:], "-c", victim), args...)...)}
	var err error
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	p.Stderr = &complaints
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	p.out = bufio.NewReader(out)
	if line, err := p.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("python: %q, %v, %s", line, err, complaints.String())
	}
	return p
}

// place is a line of a stack that both readers name.
type place struct {
	file string
	line int
}

var faultLine = regexp.MustCompile(`File "(.*)", line (\d+) in`)

// faulthandler asks the process for its own view: the stacks of all threads, in Python's order.
func (p *process) faulthandler(t *testing.T) [][]place {
	t.Helper()
	if _, err := io.WriteString(p.in, "now\n"); err != nil {
		t.Fatal(err)
	}
	var threads [][]place
	for {
		line, err := p.out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		switch found := faultLine.FindStringSubmatch(line); {
		case line == "end\n":
			return threads
		case strings.Contains(line, "hread 0x"):
			threads = append(threads, nil)
		case found != nil:
			n, _ := strconv.Atoi(found[2])
			threads[len(threads)-1] = append(threads[len(threads)-1], place{path.Base(found[1]), n})
		}
	}
}

func places(frames []stacks.Frame) []place {
	var all []place
	for _, f := range frames {
		all = append(all, place{path.Base(f.File), f.Line})
	}
	return all
}

func TestBesideFaulthandler(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := start(t, torch)
		var r stacks.Reader
		mine, err := r.Read(t.Context(), p.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		theirs := p.faulthandler(t)
		if len(mine.Threads) != len(theirs) || len(theirs) != 4 {
			t.Fatalf("%d threads, faulthandler has %d\n%s", len(mine.Threads), len(theirs), mine)
		}
		frames := 0
		for i, thread := range mine.Threads {
			if thread.Moving || thread.Truncated {
				t.Errorf("thread %d: moving %v, truncated %v", thread.ID, thread.Moving, thread.Truncated)
			}
			if thread.ID == p.Process.Pid {
				continue // it waits for a line in the one and calls faulthandler in the other
			}
			frames += len(thread.Frames)
			if got := places(thread.Frames); !slices.Equal(got, theirs[i]) {
				t.Errorf("thread %d:\nread          %v\nfaulthandler  %v", thread.ID, got, theirs[i])
			}
		}
		if frames < 100 {
			t.Errorf("only %d frames were compared", frames)
		}
		if !strings.Contains(mine.String(), "Outer.Inner.späť") {
			t.Errorf("the name that is not ASCII is missing:\n%s", mine)
		}
		// The second reading knows where this Python keeps its runtime.
		quickest := time.Hour
		for range 10 {
			from := time.Now()
			if _, err := r.Read(t.Context(), p.Process.Pid); err != nil {
				t.Fatal(err)
			}
			quickest = min(quickest, time.Since(from))
		}
		t.Logf("Python %s: %d frames compared, read in %v", mine.Version, frames, quickest)
		if quickest > 25*time.Millisecond { // 5 ms, with a margin of five for a busy machine
			t.Errorf("reading takes %v", quickest)
		}
	})
}

// TestWhileItRuns reads a process that computes, again and again, until it is killed in the middle of it.
func TestWhileItRuns(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		p := start(t, torch, "spin")
		var r stacks.Reader
		killed := make(chan struct{})
		time.AfterFunc(500*time.Millisecond, func() {
			close(killed)
			_ = p.Process.Signal(syscall.SIGKILL)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		read := 0
		for {
			mine, err := r.Read(ctx, p.Process.Pid)
			if err != nil {
				select {
				case <-killed:
				default:
					t.Fatalf("after %d readings: %v", read, err)
				}
				if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("the reading of a dead process took until the end: %v", err)
				}
				break
			}
			if len(mine.Threads) > 8 {
				t.Fatalf("%d threads", len(mine.Threads))
			}
			read++
		}
		if read < 10 {
			t.Errorf("only %d readings before it was killed", read)
		}
	})
}

// TestForkingProcess reads the children of a process while they are forked and end.
func TestForkingProcess(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		command := torch.Command()
		const forks = "import os,sys\nprint('ready',flush=True)\nwhile True:\n p=os.fork()\n if p==0: os._exit(0)\n " +
			"print(p,flush=True)\n os.waitpid(p,0)"
		cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], "-c", forks)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		var r stacks.Reader
		lines := bufio.NewScanner(out)
		for n := 0; n < 300 && lines.Scan(); n++ {
			pid, err := strconv.Atoi(lines.Text())
			if err != nil {
				continue
			}
			_, _ = r.Read(t.Context(), pid) // an error or a stack, soon
			if _, err := r.Read(t.Context(), cmd.Process.Pid); err != nil {
				t.Fatalf("the parent: %v", err)
			}
		}
	})
}
