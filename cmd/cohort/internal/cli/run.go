// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/runflags"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/diagnose/bundle"
	"github.com/cohort-dist/cohort/internal/sys/signame"
	"github.com/cohort-dist/cohort/launch"
)

// runName is the command that takes signals in its own way.
const runName = "run"

func (a *app) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   runName + " [OPTIONS] [--] PROGRAM [ARGUMENTS] | -f FILE",
		Short: "Start the workers of a job, watch them, restart them, explain failures",
		Long: strings.TrimSpace(`
Start a program several times, as torchrun does, with the environment that
torch.distributed's env:// and world.Join read. A .py file runs with Python, -m runs a
module, anything else is executed. The job's store runs in this process.

Options may be written with dashes or underscores, or as any unambiguous prefix;
torchrun's PET_ variables give defaults. When a worker fails, the others are inspected
and stopped, the job is restarted up to --max-restarts times, and a report says which
rank failed first and why.

With --members no worker is restarted: programs that form a group through the launcher's
coordinator (package elastic, or the Python lines in examples/reconfigure) continue when
one of them dies, and a spare takes its place.`),
		Example: strings.Trim(`
  cohort run --nproc-per-node 4 train.py --epochs 3
  cohort run --nproc-per-node auto -m package.train
  cohort run --nproc-per-node 2 --max-restarts 3 --tee 3 --log-dir logs train.py
  cohort run --nproc-per-node 2 ./worker
  cohort run --nproc-per-node 5 --members 4 train.py      the fifth replaces one that dies
  cohort run --nnodes 3 --rdzv-endpoint node0:29500 --nproc-per-node 2 --members 4 train.py
                                                          the same over several nodes
  cohort run -f job.yaml                      several programs, each a role of one job`, "\n"),
		DisableFlagParsing: true,
		ValidArgsFunction:  completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd, args)
		},
	}
}

// completeRun completes options; the program and its arguments are files.
func completeRun(_ *cobra.Command, before []string, word string) ([]string, cobra.ShellCompDirective) {
	if !strings.HasPrefix(word, "-") || len(before) > 0 && before[len(before)-1] == "--" {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var all []string
	for _, name := range runflags.Names() {
		if strings.HasPrefix(name, strings.ReplaceAll(word, "_", "-")) {
			all = append(all, name)
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) run(cmd *cobra.Command, args []string) error {
	o, err := runflags.Parse(cmd.Context(), args, runflags.Here())
	if err != nil {
		return command.WrongOptions(err, "cohort run --help")
	}
	if o.Help {
		_, err = fmt.Fprintf(a.Out, "%s\n\nUsage:\n  cohort run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n  cohort run [OPTIONS] -f FILE\n\nExamples:\n%s\n\n%s", cmd.Long, cmd.Example, runflags.Usage())
		return err
	}
	a.JSON = a.JSON || o.JSON
	o.Supervisor = command.Supervisor()
	a.catch(o.SignalNames)
	for _, note := range o.Notes {
		a.Note("cohort: " + note)
	}
	if o.DryRun {
		return a.dryRun(o.Config)
	}
	screen := a.screen(o)
	endLive := a.live(o, &screen)
	defer endLive() // also when something panics
	report, err := launch.Run(cmd.Context(), o.Config, screen, a.signals)
	endLive()
	if report == nil {
		return err
	}
	if o.Report != "" {
		if failed := writeReport(o.Report, report); failed != nil {
			a.Note("cohort: " + failed.Error()) // the exit code is the job's, and why the job has failed comes last
		}
	}
	if a.JSON {
		_ = json.NewEncoder(a.Err).Encode(report)
	} else {
		_, _ = fmt.Fprint(a.Err, report.Text(tui.StyleFor(a.Err, a.Getenv).Red))
	}
	switch {
	case report.Succeeded:
		return nil
	case o.FirstCode:
		return command.Exit(report.ExitCode())
	}
	return command.Exit(command.ExitFailure)
}

func (a *app) dryRun(c launch.Config) error {
	plan, err := launch.DryRun(c)
	if err != nil {
		return err
	}
	return a.Print(plan, plan.String())
}

// screen says how the job shows itself: with ranks and colours for people on a terminal, as it comes for programs.
func (a *app) screen(o runflags.Options) launch.Screen {
	s := launch.Screen{Out: a.Out, Err: a.Err}
	s.In, _ = a.In.(*os.File)
	switch o.RankPrefix {
	case "always":
		s.Ranks = true
	case "auto":
		s.Ranks = o.Workers > 1 && tui.IsTerminal(a.Out)
	}
	if style := tui.StyleFor(a.Out, a.Getenv); style.Colour {
		s.Paint = func(rank cohort.Rank, text string) string { return style.RankColour(int(rank), text) }
	}
	return s
}

// jobSignals catches the signals that a job takes. SIGHUP stays ignored if it was so from the start, as under nohup. A shell also ignores
// SIGINT and SIGQUIT for what it starts in the background; a signal that is sent to the launcher nevertheless is meant for the job.
func jobSignals() (chan os.Signal, func()) {
	caught := make(chan os.Signal, 16)
	for _, s := range signalsOfJobs {
		if s != syscall.SIGHUP || !signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
	return caught, func() { signal.Stop(caught) }
}

// catch catches the signals that the user names, beside those that every job takes.
func (a *app) catch(names string) {
	signals, _ := signame.Parse(names) // the launcher says what is wrong with them
	for _, s := range signals {
		if !slices.Contains(signalsOfJobs, os.Signal(s)) {
			signal.Notify(a.signals, s)
		}
	}
}

func writeReport(name string, r *launch.Report) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = bundle.WriteWhole(name, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}
