// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
)

// Attempt is how an attempt ended on this node. launch.Attempt explains the fields.
type Attempt struct {
	Number         int
	World          int // ranks on all nodes
	Started, Ended time.Time
	Outcome        launchcore.Outcome
	Workers        []WorkerEnd // in the order of ranks
	First          cohort.Rank
	Evidence       *Evidence
	// Verdict says why it hung, Seen what the watch had seen then, and CgroupEvents what the cgroup had counted.
	Verdict      string
	Seen         *verdict.Job
	CgroupEvents string
}

// WorkerEnd is how a worker ended.
type WorkerEnd struct {
	Rank           cohort.Rank
	Local          int
	Host           string
	PID            int
	Code           int
	Cause          postmortem.Cause
	Started, Ended time.Time
	// LastOut and LastErr are its last lines.
	LastOut, LastErr string
}

// HungSentence says how an attempt ended that hung.
func HungSentence(verdict string) string {
	return "the job hung and was stopped: " + strings.TrimSuffix(verdict, ".")
}

// result describes how an attempt ended.
func (a *attempt) result(o launchcore.Outcome) Attempt {
	r := Attempt{
		Number: a.place.attempt, World: a.place.world, Started: a.started, Ended: time.Now(), Outcome: o,
		First: a.firstFailure(o), Evidence: a.found, Verdict: a.hang.verdict, Seen: a.hang.seen, CgroupEvents: a.hang.events,
	}
	for _, w := range a.workers {
		r.Workers = append(r.Workers, a.workerEnd(w, o.Hung))
	}
	a.keepEvents(r.Workers)
	return r
}

// workerEnd describes how a worker ended, with its last lines if it failed or hung.
func (a *attempt) workerEnd(w *worker, hung bool) WorkerEnd {
	end := WorkerEnd{Rank: w.rank, Local: w.local, Host: a.job.host, PID: w.pid, Cause: w.cause, Started: w.started, Ended: w.ended}
	switch {
	case w.exit != nil:
		end.Code = w.exit.Code
	case w.refused != "":
		end.Code = 127
	case w.pid == 0:
		end.Cause.Kind, end.Cause.Words = postmortem.Stopped, "was not started"
	default:
		end.Cause.Kind, end.Cause.Words, end.Code = postmortem.Stopped, "did not end after SIGKILL: the kernel holds it", -9
	}
	if w.exit != nil && w.exit.Code != 0 || hung {
		if w.err != nil {
			end.LastErr = w.err.Last()
		}
		if w.out != nil {
			end.LastOut = w.out.Last()
		}
	}
	return end
}

// firstFailure returns the rank whose failure explains the others, [cohort.NoRank] if none has failed.
func (a *attempt) firstFailure(o launchcore.Outcome) cohort.Rank {
	var failures []postmortem.Failure
	for _, e := range o.Exits { // in the order in which they were seen
		w := a.workers[e.Worker]
		if o.Stopped && w.cause.Kind == postmortem.Stopped {
			continue // for a reason on another node
		}
		if e.Failed() && !e.Spared {
			failures = append(failures, postmortem.Failure{Rank: int(w.rank), Cause: w.cause})
		}
	}
	if i := postmortem.First(failures); i >= 0 {
		return cohort.Rank(failures[i].Rank)
	}
	return cohort.NoRank
}
