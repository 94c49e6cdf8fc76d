// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/observe/progress"
)

// TestReported: what a process says of itself is read from outside, and one that says nothing has said nothing.
func TestReported(t *testing.T) {
	t.Parallel()
	defer progress.Section("load")()
	progress.StepTo(120)
	all := Reported(Job{Ranks: []Rank{{PID: os.Getpid()}, {PID: os.Getppid()}}})
	if got := all[0]; got.Section != "load" || got.Steps != 120 || got.SectionAge > time.Minute || got.StepAge > time.Minute {
		t.Errorf("%+v", got)
	}
	if got := all[1]; got != (verdict.Reported{}) {
		t.Errorf("the process that runs this test says %+v", got)
	}
}

// TestGoRankTwice: a Go rank is asked for its goroutines twice, and what has changed meanwhile moves.
func TestGoRankTwice(t *testing.T) {
	t.Parallel()
	const (
		loads   = "goroutine 1 [chan receive, 3 minutes]:\nmain.load(...)\n\t/home/u/load.go:9\n\n"
		stores  = "goroutine 1 [chan receive]:\nmain.store(...)\n\t/home/u/store.go:9\n\n"
		serving = "goroutine 40 " +
			"[select]:\nmain.sum(...)\n\t/home/u/sum.go:9\n" +
			"github.com/cohort-dist/cohort/internal/rpc/rpcserver.run(...)\n\t/src/rpcserve/run.go:1\n\n"
	)
	for name, c := range map[string]struct {
		first, second       string
		moved, once, serves bool
		idle                time.Duration
	}{
		"it stands still":      {first: loads + serving, second: loads + serving, idle: 3 * time.Minute},
		"it gets on":           {first: loads, second: stores, moved: true},
		"it serves another":    {first: loads, second: loads + serving, serves: true, idle: 3 * time.Minute},
		"it answers only once": {first: loads, once: true, idle: 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := exec.CommandContext(t.Context(), "sleep", "600") // no Python, and none of the others' children
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
			base, err := os.MkdirTemp("", "ctl") //nolint:usetesting // t.TempDir is too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(base) })
			dir, err := controlsock.Make(base)
			if err != nil {
				t.Fatal(err)
			}
			var asked atomic.Int32
			server, err := controlsock.Serve(dir, controlsock.Name(process.Process.Pid, 1),
				controlsock.Answers{"stacks": func(context.Context) ([]byte, error) {
					if asked.Add(1) == 1 {
						return []byte(c.first), nil
					}
					if c.second == "" {
						return nil, errors.New("no answer")
					}
					return []byte(c.second), nil
				}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(server.Close)
			seen := Glance(t.Context(), Job{
				World: 1,
				Ranks: []Rank{{PID: process.Process.Pid, env: map[string]string{controlsock.EnvRun: base}}},
			}, time.Millisecond)
			r := seen.Ranks[0]
			serves := len(r.Threads) > 1 && r.Threads[1].Moving
			if r.Main == nil || r.Moved != c.moved || r.Once != c.once || r.Idle != c.idle || serves != c.serves {
				t.Errorf("%+v", r)
			}
		})
	}
}
