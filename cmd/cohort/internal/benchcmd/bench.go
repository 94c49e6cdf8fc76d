// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package benchcmd is "cohort bench": it measures collectives, calls and training between processes of this machine.
package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/childproc"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/internal/sys/selfexe"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// app carries what the commands share.
type app struct{ *command.App }

// New returns the command.
func New(shared *command.App) *cobra.Command {
	a := &app{shared}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure collectives, calls and training on this machine",
		Long: strings.TrimSpace(`
Each command starts processes on this machine, measures, and prints one JSON object per
value: group, case, peer, value and unit. Names and method are those of bench/peers, so
the rows can be compared with those of PyTorch, OpenMPI and others.`),
		Example: strings.Trim(`
  cohort bench coll --ranks 2
  cohort bench rpc
  cohort bench train`, "\n"),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.collCommand(), a.collRankCommand(), a.rpcCommand(), a.rpcWorkerCommand(), a.trainCommand(),
		a.trainRankCommand(), a.hopsRankCommand())
	return cmd
}

// runRanks hosts a store and runs ranks of a benchmark, as processes of this program, with the arguments behind "bench".
// When one fails the others are ended.
func (a *app) runRanks(ctx context.Context, n int, env []string, args func(rank int, store string) []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server, err := tcpstore.Listen("127.0.0.1:0", tcpstore.WithHook(func(e observe.Event) {
		if e.Kind == "store.refuse" { // the rank would wait until its time is over
			cancel(fmt.Errorf("the store of the ranks: %s", e.Detail))
		}
	}))
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	program, err := selfexe.Path()
	if err != nil {
		return err
	}
	var ranks sync.WaitGroup
	for r := range n {
		//nolint:gosec // this program
		cmd := exec.CommandContext(ctx, program, append([]string{"bench"}, args(r, server.Addr().String())...)...)
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdout, cmd.Stderr = a.Out, a.Err
		release, err := childproc.Start(cmd)
		if errors.Is(err, syscall.EMFILE) {
			err = fmt.Errorf("%w; raise the limit of open files (ulimit -n)", err)
		}
		if err != nil {
			cancel(fmt.Errorf("rank %d: %w", r, err))
			break
		}
		ranks.Go(func() {
			defer release()
			if err := cmd.Wait(); err != nil {
				cancel(fmt.Errorf("rank %d: %w", r, err))
			}
		})
	}
	ranks.Wait()
	return context.Cause(ctx)
}

func freeLoopback() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// startReady starts this program again, tied to this process, and waits for its first line. stop waits for its end.
func startReady(ctx context.Context, args ...string) (pid int, stop func(), err error) {
	program, err := selfexe.Path()
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // ourselves
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	release, err := childproc.Start(cmd)
	if err != nil {
		return 0, nil, err
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
		release()
	}
	line := make([]byte, len("ready\n"))
	if n, err := out.Read(line); err != nil || string(line[:n]) != "ready\n" {
		stop()
		return 0, nil, fmt.Errorf("process %s did not start: %q", strconv.Itoa(cmd.Process.Pid), line[:n])
	}
	return cmd.Process.Pid, stop, nil
}
