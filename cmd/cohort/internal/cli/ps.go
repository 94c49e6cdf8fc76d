// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/diagnose/jobdoc"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/agent"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

func (a *app) psCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ps [JOB]",
		Short: "List the jobs on this host, their ranks and what each is doing",
		Long: strings.TrimSpace(`
List the jobs on this host, no matter what started them, with a line for each rank that runs
here: its store, its process, how often it was restarted, and what it is doing. JOB is
the id or the store address of one of them, or the process id of one of its ranks. With
--json each job is one object; no line means that no job runs. What a launcher that was
killed together with its supervisor has left behind is removed first.`),
		Args: command.Between(0, 1, "JOB"),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent.SweepDead("", func(format string, args ...any) { a.Note("cohort: " + fmt.Sprintf(format, args...)) })
			found, release, err := a.jobs(cmd.Context(), args)
			defer release()
			if errors.Is(err, cohort.NotFound) && len(args) == 0 {
				return a.noJobs()
			}
			if err != nil {
				return err
			}
			return a.ps(cmd.Context(), found)
		},
	}
}

// noJobs says that there are none: in JSON by no line.
func (a *app) noJobs() error {
	if a.JSON {
		return nil
	}
	return a.PrintText("no jobs")
}

func (a *app) ps(ctx context.Context, found []jobscan.Job) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "JOB\tSTORE\tRANK\tPID\tRESTART\tDOING")
	for _, j := range found {
		doing, said := jobscan.Doing(ctx, j), jobscan.Reported(j)
		if a.JSON {
			if err := a.printJob(psDocument(j, doing, said), ""); err != nil {
				return err
			}
		}
		for i, r := range j.Ranks {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d/%d\t%d\t%d\t%s\n", printable.Line(j.ID), printable.Line(j.Store), r.Rank, j.World, r.PID,
				r.Restart, printable.Line(doing[i])+tui.Said(said[i].Section, said[i].Steps))
		}
	}
	if a.JSON {
		return nil
	}
	_ = w.Flush()
	return a.PrintText(strings.TrimSuffix(b.String(), "\n"))
}

// psDocument is a job with what its ranks on this host do.
func psDocument(j jobscan.Job, doing []string, said []verdict.Reported) *jobdoc.Document {
	d := &jobdoc.Document{
		Schema: jobdoc.Schema, Source: jobdoc.Live, TakenAt: jobdoc.At(time.Now()),
		Job: jobdoc.Job{ID: j.ID, State: jobdoc.Running, World: j.World, Store: j.Store},
	}
	host, _ := os.Hostname()
	for i, r := range j.Ranks {
		row := jobdoc.Rank{
			Rank: r.Rank, Host: host, PID: r.PID, Command: r.Command, Phase: jobdoc.Running, Restarts: new(r.Restart),
			Where: doing[i],
		}
		if state, found := strings.CutPrefix(doing[i], "state "); found {
			row.Where, row.State = "", state
		}
		row.AddReported(said[i])
		d.Ranks = append(d.Ranks, row)
	}
	d.Count()
	return d
}
