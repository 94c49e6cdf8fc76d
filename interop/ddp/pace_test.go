// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

const rankEnv = "COHORT_TEST_DDP_RANK"

// TestMain runs the tests, or one Go rank in a process of its own.
func TestMain(m *testing.M) {
	text := os.Getenv(rankEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var url, mode string
	var steps int
	if _, err := fmt.Sscan(text, &url, &mode, &steps); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	training = func() { fmt.Println("training") }
	digest, _, err := train(ctx, url, mode, steps)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// goRank is a Go rank in a process of its own.
type goRank struct {
	cmd      *exec.Cmd
	training chan struct{} // it has a model
	ended    chan struct{}
	digest   string // when it has ended
}

func startRank(t *testing.T, url, mode string, steps int) *goRank {
	t.Helper()
	r := &goRank{cmd: exec.Command(os.Args[0]), training: make(chan struct{}, 1), ended: make(chan struct{})}
	r.cmd.Env, r.cmd.Stderr = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", rankEnv, url, mode, steps)), os.Stderr
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			if r.digest = s.Text(); r.digest == "training" {
				r.training <- struct{}{}
			}
		}
		_ = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
	})
	return r
}

// TestPace: a rank of a mixed job comes late, or is stopped for some seconds in the middle of its training: the others wait for it, and
// all end with the same parameters. One that leaves before the others, or is killed, ends the job on all ranks.
func TestPace(t *testing.T) {
	const size, own = 3, 1
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, what := range []string{"late go", "stopped go", "stopped torch", "leaving go", "killed go", "killed torch"} {
			t.Run(what, func(t *testing.T) {
				mode, steps, ends := "buffers", 100, strings.HasPrefix(what, "leaving") || strings.HasPrefix(what, "killed")
				if ends {
					steps = 1_000_000
				}
				port := strconv.Itoa(testkit.FreePort(t))
				url := fmt.Sprintf("tcp://127.0.0.1:%s?rank=%d&world_size=%d", port, own, size)
				procs := map[int]*torchtest.Proc{}
				for rank := range size {
					if rank != own {
						procs[rank] = torch.Start(t,
							torchtest.Script{
								Name: "rank.py", Source: script, Shared: torchtest.Optimizers,
								Args: []string{"buffers", strconv.Itoa(steps)}, Env: map[string]string{
									"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(size), "MASTER_ADDR": "127.0.0.1",
									"MASTER_PORT": port,
								},
							})
					}
				}
				if what == "late go" {
					time.Sleep(2 * time.Second)
				}
				if what == "leaving go" {
					mode, steps = "buffers-leave", 20
				}
				r := startRank(t, url, mode, steps)
				signal := func(s syscall.Signal) { _ = r.cmd.Process.Signal(s) }
				if strings.HasSuffix(what, "torch") {
					signal = procs[2].Signal
				}
				switch strings.Fields(what)[0] {
				case "stopped":
					<-r.training
					signal(syscall.SIGSTOP)
					time.Sleep(3 * time.Second)
					signal(syscall.SIGCONT)
				case "killed":
					<-r.training
					signal(syscall.SIGKILL)
				}
				<-r.ended
				ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("the others wait"))
				defer cancel()
				if ok := r.cmd.ProcessState.Success(); ok != (!ends || what == "leaving go") {
					t.Errorf("the Go rank has ended with %v", r.cmd.ProcessState)
				}
				for rank, p := range procs {
					code, err := p.Wait(ctx)
					switch {
					case err != nil:
						t.Errorf("rank %d: %v", rank, err)
					case !ends && (code != 0 || strings.TrimSpace(p.Stdout()) != r.digest):
						t.Errorf("rank %d has ended with %d, parameters %s, the Go rank's %s", rank, code, p.Stdout(), r.digest)
					case ends && code == 0:
						t.Errorf("rank %d has succeeded", rank)
					}
				}
			})
		}
	})
}
