// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package cli is the cohort command: its sub-commands, their flags and what they print. The work itself is done by the
// public packages.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/tui"
	"github.com/cohort-dist/cohort/launch"
	"github.com/cohort-dist/cohort/rpc"
)

// Exit codes, as "cohort help exit-codes" explains them.
const (
	ExitOK        = 0
	ExitFailure   = 1
	ExitUsage     = 2
	ExitTimeout   = 3
	ExitNotFound  = 4
	ExitUnchanged = 5
	ExitNoStore   = 6
)

// IO is what a command may touch of the outside.
type IO struct {
	In     io.Reader
	Out    io.Writer
	Err    io.Writer
	Getenv func(string) string
}

// System is the IO of this process.
func System() IO { return IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv} }

// app carries what all commands share.
type app struct {
	IO
	json    bool
	signals <-chan os.Signal // those of "cohort run", which takes them itself
}

// Main runs the command line args (without the program's name) and returns the exit code. SIGINT and SIGTERM end the
// command in order; a second one ends the process at once.
func Main(args []string, streams IO) int {
	if len(args) == 1 && args[0] == keeperName {
		return launch.KeeperMain()
	}
	a := &app{IO: streams}
	ctx := context.Background()
	var stop func()
	if i := slices.IndexFunc(args, func(s string) bool { return !strings.HasPrefix(s, "-") }); i >= 0 && args[i] == runName {
		a.signals, stop = jobSignals() // from the start: one that came before would be lost
	} else {
		ctx, stop = signalContext()
	}
	defer stop()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	if silent, ok := errors.AsType[*exitError](err); ok {
		return silent.code
	}
	a.complain(err)
	return exitCode(err)
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal os.Signal }

func (e signalError) Error() string {
	if s, ok := e.signal.(syscall.Signal); ok && s == syscall.SIGINT {
		return "SIGINT"
	}
	return "SIGTERM"
}

// signalContext ends with SIGINT or SIGTERM. The next signal has its usual, deadly effect.
func signalContext() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-caught:
			signal.Stop(caught)
			cancel(signalError{s})
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		<-ended
		signal.Stop(caught)
		cancel(nil)
	}
}

// exitError ends the command with a code after everything was said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// unreachableError says that no store could be reached at all.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

func exitCode(err error) int {
	var usage *usageError
	var unreachable *unreachableError
	switch {
	case errors.As(err, &usage), errors.Is(err, dist.InvalidArgument):
		return ExitUsage
	case errors.As(err, &unreachable):
		return ExitNoStore
	case errors.Is(err, dist.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return ExitTimeout
	case errors.Is(err, dist.NotFound):
		return ExitNotFound
	}
	return ExitFailure
}

// complain prints err: one line, and below it the stack of a function that failed; or one JSON object with --json.
func (a *app) complain(err error) {
	text := err.Error()
	remote, _ := errors.AsType[*rpc.RemoteError](err)
	if a.json {
		code := dist.CodeOf(err)
		if exitCode(err) == ExitUsage {
			code = dist.InvalidArgument
		}
		report := map[string]any{"error": text, "code": code.String(), "exit": exitCode(err)}
		if remote != nil {
			report["kind"], report["stack"] = remote.Kind, remote.Stack
		}
		_ = json.NewEncoder(a.Err).Encode(report)
		return
	}
	style := tui.StyleFor(a.Err, a.Getenv)
	_, _ = fmt.Fprintln(a.Err, style.Red("cohort:")+" "+tui.Printable(text))
	if remote != nil {
		for line := range strings.Lines(remote.Stack) {
			_, _ = fmt.Fprintln(a.Err, "  "+tui.Printable(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")))
		}
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "cohort",
		Short: "torch.distributed without PyTorch: stores, rendezvous and more",
		Long: strings.TrimSpace(`
cohort starts jobs of PyTorch and Go processes as torchrun does (run), says why one stands
still (why, ps), and serves a store that PyTorch 1.13 and 2.x clients share on one port
(store serve). Its other commands read and write the store of any PyTorch job, and
list and call the workers of its RPC world.`),
		Example: strings.Trim(`
  cohort run --nproc-per-node 4 train.py      start a job: a PyTorch script or any program
  cohort why                                  say why a job on this host stands still
  cohort store serve --addr 0.0.0.0:29500     serve a store for a job
  cohort store top --addr node0:29500         see who waits for which key since when
  cohort store get --addr node0:29500 epoch   read a key
  cohort trace dumps/                         say which rank a job that hangs waits for
  cohort rpc ls --addr node0:29500            list the workers of an RPC world
  cohort demo                                 see four processes meet`, "\n"),
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       thisVersion().String(),
		Args:          noSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, one object a line, errors included")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w; %q explains the flags", err, cmd.CommandPath()+" --help")}
	})
	root.AddCommand(a.runCommand(), a.whyCommand(), a.psCommand(), a.storeCommand(), a.rpcCommand(), a.traceCommand(), a.benchCommand(), a.demoCommand(), a.demoWorkerCommand(), a.manCommand(), a.versionCommand(), exitCodesTopic())
	return root
}

// noSuchCommand is the Args check of a command that only has sub-commands.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0])
	if near := cmd.SuggestionsFor(args[0]); args[0] != "" && len(near) > 0 {
		// Few people mistype the first letter.
		best := max(0, slices.IndexFunc(near, func(name string) bool { return strings.HasPrefix(args[0], name[:1]) }))
		text += fmt.Sprintf("; did you mean %q?", cmd.CommandPath()+" "+near[best])
	} else {
		text += fmt.Sprintf("; %q lists them", cmd.CommandPath()+" --help")
	}
	return &usageError{errors.New(text)}
}

// exactly is cobra.ExactArgs with an error in plain words.
func exactly(names ...string) cobra.PositionalArgs {
	return between(len(names), len(names), names...)
}

// between checks the number of arguments and names the one that is missing.
func between(least, most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return &usageError{fmt.Errorf("%s is missing; usage: %s", names[len(args)], cmd.UseLine())}
		case most >= 0 && len(args) > most:
			return &usageError{fmt.Errorf("%q is one argument too many; usage: %s", args[most], cmd.UseLine())}
		}
		return nil
	}
}

// print writes v as JSON with --json, else text with a line end.
func (a *app) print(v any, text string) error {
	if a.json {
		return json.NewEncoder(a.Out).Encode(v)
	}
	_, err := fmt.Fprintln(a.Out, text)
	return err
}

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "The exit codes of all commands",
		Long: strings.TrimSpace(`
The exit codes of all commands:

  0  done
  1  failed: the error says why; also when a signal ended the command early
  2  the command line is wrong
  3  the time was over (--timeout)
  4  the key, worker or function does not exist
  5  compare-and-set: the value was another one and stays as it was
  6  the store cannot be reached`),
	}
}
