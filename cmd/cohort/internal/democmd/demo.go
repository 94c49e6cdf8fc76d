// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package democmd is "cohort demo": processes that work together, one that is killed and one that hangs.
package democmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/childproc"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/selfexe"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// app carries what the commands share.
type app struct{ *command.App }

// New returns the command.
func New(shared *command.App) *cobra.Command {
	a := &app{shared}
	var workers int
	var limit time.Duration
	var torch string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run four processes together, kill one, hang one, and show what cohort says about it",
		Long: strings.TrimSpace(`
Start a store and worker processes on this machine. The workers find each other
through the store, exchange keys, count together and pass a barrier, as the ranks of a
PyTorch job do. Then they sum a vector with an all-reduce, train a small network
together, and pass a remote reference around.

In a second job one rank is killed, and you see the report and the restart. The ranks of
a third job train a network; then one hangs, and "cohort why" says which and where. If
python3 has torch, that is a PyTorch rank. Nothing is left behind, however the
demonstration ends.`),
		Example: strings.Trim(`
  cohort demo
  cohort demo --workers 8 --json`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if workers < 1 || workers > 64 {
				return command.Usage(fmt.Errorf("--workers %d: from 1 to 64", workers))
			}
			if torch != "auto" && torch != "never" {
				return command.Usage(fmt.Errorf("--torch %s: it must be auto or never", torch))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			err := a.demo(ctx, workers)
			if err == nil && runtime.GOOS == "linux" { // elsewhere jobs cannot be looked at from outside
				s := &scenes{app: a, workers: workers, start: time.Now(), style: tui.StyleFor(a.Out, a.Getenv)}
				if err = s.play(ctx, torch == "auto"); err == nil {
					s.next()
				}
			}
			if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return cohort.Newf("demo", cohort.DeadlineExceeded, "not finished within %s; --timeout gives it more", limit)
			}
			return command.Explain(ctx, err)
		},
	}
	cmd.Flags().IntVar(&workers, "workers", 4, "number of worker processes")
	cmd.Flags().DurationVar(&limit, "timeout", time.Minute, "give up after this time")
	cmd.Flags().StringVar(&torch, "torch", "auto", "auto lets a PyTorch rank take part if python3 has torch; never")
	return cmd
}

// demo runs the whole demonstration.
func (a *app) demo(ctx context.Context, workers int) error {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	v := newView(a, server, workers)
	v.opening()
	reports := make(chan message)
	ended := make(chan workerEnd)
	var running sync.WaitGroup
	defer running.Wait() // after cancel: no worker outlives this call
	defer cancel()
	for rank := range workers {
		running.Go(func() {
			ended <- runWorker(ctx, rank, workers, server.Addr(), v.started, reports)
		})
	}
	var failures []error
	redraw := time.NewTicker(100 * time.Millisecond)
	defer redraw.Stop()
	for left := workers; left > 0; {
		select {
		case r := <-reports:
			v.report(r)
			if r.Error != "" && ctx.Err() == nil {
				failures = append(failures, fmt.Errorf("rank %d: %s: %s", r.Rank, acts()[r.Act].name, r.Error))
				cancel()
			}
		case end := <-ended:
			left--
			if end.err != nil && len(failures) == 0 {
				failures = append(failures, end.err)
				cancel()
			}
		case <-redraw.C:
			v.draw()
		}
	}
	v.draw()
	if len(failures) > 0 {
		return failures[0]
	}
	return v.closing()
}

// workerEnd is how a worker process ended.
type workerEnd struct{ err error }

// runWorker runs one worker process and passes its reports on until it has ended. When ctx ends the process is killed.
func runWorker(
	ctx context.Context, rank, size int, addr net.Addr, started func(rank, pid int), reports chan<- message,
) workerEnd {
	fail := func(err error) workerEnd { return workerEnd{fmt.Errorf("rank %d: %w", rank, err)} }
	program, err := selfexe.Path()
	if err != nil {
		return fail(err)
	}
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return fail(err)
	}
	cmd := exec.CommandContext(ctx, program, "demo-worker", "--rank", strconv.Itoa(rank)) //nolint:gosec // ourselves
	cmd.Env = append(os.Environ(),
		rendezvous.EnvRank+"="+strconv.Itoa(rank), rendezvous.EnvWorldSize+"="+strconv.Itoa(size),
		rendezvous.EnvMasterAddr+"="+host, rendezvous.EnvMasterPort+"="+port,
		rendezvous.EnvUseAgentStore+"=True", // the store is here, so that all ranks are its clients
		rendezvous.EnvRestartCount+"=0")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	// Held open while we live: a worker that reads its end knows that we are gone.
	if _, err = cmd.StdinPipe(); err != nil {
		return fail(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	release, err := childproc.Start(cmd)
	if err != nil {
		return fail(err)
	}
	defer release()
	started(rank, cmd.Process.Pid)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r message
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Rank != rank || r.Act < 0 || r.Act >= len(acts()) {
			continue
		}
		reports <- r
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return fail(context.Cause(ctx))
		}
		if said := strings.TrimSpace(complaints.String()); said != "" {
			err = errors.New(said)
		}
		return fail(err)
	}
	return workerEnd{}
}
