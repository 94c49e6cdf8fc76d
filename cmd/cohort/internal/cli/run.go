// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

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
module, anything else is executed. The job's store runs in this process. Give several
nodes one token (cohort token new): launchers and store then use TLS, and MASTER_ADDR is
127.0.0.1, where each launcher has a gateway to the store for its own workers.

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
		_, err = fmt.Fprintf(a.Out,
			"%s\n\nUsage:\n  cohort run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n  cohort run [OPTIONS] -f FILE\n\nExamples:\n%s\n\n%s",
			cmd.Long, cmd.Example, runflags.Usage())
		return err
	}
	a.JSON = a.JSON || o.JSON
	_ = os.Unsetenv(runflags.EnvToken) // the supervisor and the workers inherit the environment
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
		if failed := writeReport(o.Report, report, o.ShortReport); failed != nil {
			a.Note("cohort: " + failed.Error()) // the exit code is the job's, and why the job has failed comes last
		}
	}
	if a.JSON {
		_ = writeDocument(a.Err, report)
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
	return a.Print("plan", plan, plan.String())
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

// terminationMessage is how much Kubernetes keeps of a termination message.
const terminationMessage = 4096

func writeReport(name string, r *launch.Report, short bool) error {
	var b []byte
	var err error
	if short {
		b = []byte(r.Short(terminationMessage))
	} else if b, err = json.MarshalIndent(r, "", "  "); err == nil {
		b = append(b, '\n')
	}
	if err == nil {
		err = bundle.WriteWhole(name, b)
	}
	if err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}

// live lets a job of several workers show what it does at the bottom of the terminal. The function it returns ends that.
func (a *app) live(o runflags.Options, s *launch.Screen) (end func()) {
	out, _ := a.Out.(*os.File)
	if o.NoLive || o.Workers == 1 && o.Nodes.Max <= 1 || !tui.IsTerminal(a.Out) || a.Getenv("TERM") == "dumb" {
		return func() {}
	}
	size := func() (width, height int) {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil {
			return 0, 0
		}
		return width, height
	}
	if !tui.HasRoom(size()) { // a terminal without a size, such as that of a container in CI, never gets one
		return func() {}
	}
	view := tui.NewLive(out, func() (int, int) {
		if tui.InBackground(out) {
			return 0, 0
		}
		return size()
	})
	s.Out, s.Ranks = view, s.Ranks || o.RankPrefix == "auto"
	if tui.IsTerminal(a.Err) {
		s.Err = view
	}
	style := tui.StyleFor(a.Out, a.Getenv)
	s.Show = func(status launch.Status) {
		job := jobView(status, time.Now())
		view.Set(func(width, height int) []string { return job.Lines(width, height, style) })
	}
	signals, _ := signame.Parse(o.SignalNames) // the launcher says what is wrong with them
	endSuspends := tui.Suspends(view, signals)
	return sync.OnceFunc(func() {
		endSuspends()
		view.Close()
	})
}

// jobView says what to show of a job.
func jobView(s launch.Status, now time.Time) tui.Job {
	j := tui.Job{
		Program: s.Program, Elapsed: now.Sub(s.Started), Attempt: s.Attempt, Restarts: s.MaxRestarts, World: s.World, Node: s.Node,
		Gathering: gatheringWords(s.Gathering, now),
	}
	for _, n := range s.Nodes {
		j.Nodes = append(j.Nodes, tui.JobNode{Host: n.Host, Base: int(n.Base), Workers: n.Workers})
	}
	j.Unknown = max(0, s.World-len(s.Ranks)-len(s.Others))
	everywhere := slices.Concat(s.Ranks, s.Others)
	slices.SortFunc(everywhere, func(a, b launch.WorkerStatus) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, r := range everywhere {
		rank := tui.JobRank{
			Rank: int(r.Rank), Since: now.Sub(r.Since), Line: r.Line, Section: r.Section, Entered: now.Sub(r.Entered), Steps: r.Steps,
		}
		if !r.Printed.IsZero() {
			rank.Quiet = now.Sub(r.Printed)
		}
		switch r.Phase {
		case launch.WorkerStarting:
			rank.Kind, rank.Words = tui.Ahead, "start"
		case launch.WorkerRunning:
			rank.Kind, rank.Words = tui.Playing, "run"
		case launch.WorkerStopping:
			rank.Kind, rank.Words = tui.Ahead, "are being stopped"
		case launch.WorkerDone:
			rank.Kind, rank.Words = tui.Done, "have exited"
		case launch.WorkerFailed:
			rank.Kind, rank.Words = tui.Failed, r.Words
		}
		j.Ranks = append(j.Ranks, rank)
	}
	for _, w := range slices.Concat(s.Waits, s.OtherWaits) {
		if !slices.Contains(j.Waiting, int(w.Rank)) { // launchers on one machine see the same
			j.Waiting = append(j.Waiting, int(w.Rank))
		}
		if age := now.Sub(w.Since); age > j.WaitingFor {
			j.WaitingFor, j.WaitingKey = age, w.Key
		}
	}
	slices.Sort(j.Waiting)
	return j
}

// gatheringWords says who is missing and since when.
func gatheringWords(g *launch.Gathering, now time.Time) string {
	if g == nil {
		return ""
	}
	wanted := strconv.Itoa(g.Max)
	if g.Min < g.Max {
		wanted = fmt.Sprintf("%d to %d", g.Min, g.Max)
	}
	text := fmt.Sprintf("%d of %s nodes are present for %s", g.Here, wanted, tui.Age(now.Sub(g.Since)))
	switch len(g.Missing) {
	case 0:
	case 1:
		text += fmt.Sprintf("; node %d is missing", g.Missing[0])
	default:
		text += "; nodes " + tui.Ranges(g.Missing) + " are missing"
	}
	return text
}
