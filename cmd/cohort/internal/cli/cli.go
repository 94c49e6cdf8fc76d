// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package cli is the cohort command: its sub-commands, their flags and what they print. The work itself is done by the
// public packages.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/benchcmd"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/democmd"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/rpccmd"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/storecmd"
	"github.com/cohort-dist/cohort/launch"
)

// IO is what a command may touch of the outside.
type IO = command.IO

// System is the IO of this process.
func System() IO { return command.System() }

// app carries what all commands share.
type app struct {
	*command.App
	signals chan os.Signal // those of "cohort run", which takes them itself
}

// Arguments returns the arguments of a command line that begins with the name of the program. Under the name torchrun, as a link or a
// copy, the program is "cohort run".
func Arguments(line []string) []string {
	if len(line) == 0 {
		return nil
	}
	if command.IsTorchrun(line[0]) {
		return append([]string{runName}, line[1:]...)
	}
	return line[1:]
}

// Main runs the command line args (without the program's name) and returns the exit code. SIGINT and SIGTERM end the
// command in order; a second one ends the process at once.
func Main(args []string, streams IO) int {
	if len(args) == 1 && args[0] == command.SupervisorName {
		return launch.SupervisorMain()
	}
	a := &app{App: &command.App{IO: streams}}
	ctx := context.Background()
	var stop func()
	if i := slices.IndexFunc(args, func(s string) bool { return !strings.HasPrefix(s, "-") }); i >= 0 && args[i] == runName {
		a.signals, stop = jobSignals() // from the start: one that came before would be lost
	} else {
		ctx, stop = command.SignalContext()
	}
	defer stop()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return command.ExitOK
	}
	if silent, ok := errors.AsType[*command.ExitError](err); ok {
		return silent.Code
	}
	a.Complain(err)
	return command.ExitCode(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "cohort",
		Short: "torch.distributed without PyTorch: stores, rendezvous and more",
		Long: strings.TrimSpace(`
cohort starts jobs of PyTorch and Go processes as torchrun does (run), says why a job
hangs (why, ps), and serves a store that PyTorch 1.13 and 2.x clients share on one port
(store serve). Its other commands read and write the store of any PyTorch job, and
list and call the workers of its RPC world.`),
		Example: strings.Trim(`
  cohort run --nproc-per-node 4 train.py      start a job: a PyTorch script or any program
  cohort why                                  say why a job on this host hangs
  cohort store serve --addr 10.0.0.1:29500    serve a store for a job
  cohort store top --addr node0:29500         see who waits for which key, and since when
  cohort store get --addr node0:29500 epoch   read a key
  cohort trace dumps/                         find the rank that a hanging job waits for
  cohort rpc ls --addr node0:29500            list the workers of an RPC world
  cohort demo                                 see four processes work together`, "\n"),
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       thisVersion().String(),
		Args:          command.NoSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().BoolVar(&a.JSON, "json", false, "print JSON, one object per line, errors included")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return command.Usage(fmt.Errorf("%w; %q explains the flags", command.PlainFlagError(err), cmd.CommandPath()+" --help"))
	})
	root.AddCommand(a.runCommand(), a.tokenCommand(), a.coordinateCommand(), a.whyCommand(), a.psCommand(),
		storecmd.New(a.App), rpccmd.New(a.App), a.traceCommand(), benchcmd.New(a.App), democmd.New(a.App), democmd.NewWorker(a.App),
		a.manCommand(), a.schemaCommand(), a.versionCommand(), a.helperCommand(), exitCodesTopic())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(cmd *cobra.Command, args []string) error { return knownTopic(cmd.Root(), args) }
		case "completion":
			cmd.Args, cmd.RunE = command.NoSuchCommand, root.RunE
		}
	}
	return root
}

// knownTopic checks what "cohort help" was asked about.
func knownTopic(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasSubCommands() {
		return err
	}
	return command.NoSuchCommand(cmd, rest)
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
  3  timed out (--timeout)
  4  the key, worker or function does not exist
  5  compare-and-set: the value was not the expected one and was not changed
  6  the store cannot be reached`),
	}
}
