// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/agent"
	"github.com/cohort-dist/cohort/internal/launch/supervisor"
)

// SupervisorMain runs the supervisor process. A program that was started with the arguments of [Config].Supervisor must call it and
// exit with the code that it returns.
func SupervisorMain() int { return supervisor.Main() }

// Screen is where the output of a job goes.
type Screen struct {
	// In is the standard input of a job of one worker; nil: none.
	In *os.File
	// Out and Err take what the workers print there, Err also the launcher's own messages; nil drops it.
	Out, Err io.Writer
	// Ranks puts the rank before every line and joins identical lines of several ranks: for people, not for programs.
	Ranks bool
	// Paint colours a rank's prefix, if set.
	Paint func(rank cohort.Rank, text string) string
	// Show, if set, is given the status of the job again and again, by one goroutine, until Run returns. Out and Err then
	// get whole lines only, and lines that are not finished are part of the status.
	Show func(Status)
}

// forAgent returns the agent's screen.
func (s Screen) forAgent() agent.Screen {
	a := agent.Screen{In: s.In, Out: s.Out, Err: s.Err, Ranks: s.Ranks, Paint: s.Paint}
	if s.Show != nil {
		a.Show = func(status agent.Status) { s.Show(statusOf(status)) }
	}
	return a
}

// Run runs a job until it has ended and reports how. The error is nil if the job succeeded, else that of [Report.Err]. The
// report is nil if nothing was tried, because cfg is wrong ([cohort.InvalidArgument]) or the supervisor does not start. The end
// of ctx stops the job as SIGTERM does.
//
// It corresponds to torch.distributed.launcher.api.launch_agent, and the error to its ChildFailedError.
//
// signals are those that the caller has received: the ones of Config.SignalNames end the job, others are passed on to the
// workers. It may be nil.
func Run(ctx context.Context, cfg Config, screen Screen, signals <-chan os.Signal) (*Report, error) {
	c, err := cfg.forAgent()
	if err == nil {
		err = c.CheckPrograms()
	}
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	report := &Report{
		RunID: c.RunID, Host: host, Program: c.Roles[0].Program[0], Workers: c.Workers, MaxRestarts: c.MaxRestarts,
		Started: time.Now(),
	}
	c.Screen, c.Signals, c.Started, c.AttemptEnded = screen.forAgent(), signals, report.Started, report.attemptEnded
	job, err := agent.New(ctx, c)
	if err != nil {
		return nil, err
	}
	defer job.Close()
	dir, temporary := job.Dir()
	if !temporary {
		report.LogDir = dir
	}
	end := job.Run()
	report.finish(ctx, end)
	job.RecordEnd(report.Succeeded, report.Sentence)
	if !report.Succeeded && end.Err == nil && !cfg.NoEvidence {
		report.saveEvidence(cfg.EvidenceDir, dir, job.Logf)
	}
	return report, report.Err()
}
