// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/agent"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// Report says how a job ended. Its JSON form is cohort.job.v1, which docs/json.md describes.
//
//nolint:recvcheck // its JSON form must be had of a value too
type Report struct {
	RunID       string
	Program     string
	Host        string
	Workers     int
	MaxRestarts int
	Started     time.Time
	Ended       time.Time
	Succeeded   bool
	// Signal is the signal that the user ended the job with, or 0.
	Signal int
	// Sentence says why it failed: "rank 1 raised ValueError: bad batch 17".
	Sentence string
	Attempts []Attempt
	// LogDir is where the log files are, Bundle where the evidence is; "" if there is none.
	LogDir string
	Bundle string

	err error // what Err returns if the job failed
	// decided says that Succeeded, Sentence and err are those of the whole job, which another launcher has reported.
	decided bool
}

// Attempt is one try to run the job.
type Attempt struct {
	Number    int
	Started   time.Time
	Ended     time.Time
	Succeeded bool
	Signal    int
	Hung      bool
	// Verdict says why it hung.
	Verdict string
	// World is the number of ranks on all nodes.
	World int
	// Workers are in the order of ranks.
	Workers []WorkerEnd
	// First is the rank that failed first, [cohort.NoRank] if none has.
	First    cohort.Rank
	Evidence *Evidence

	seen   *verdict.Job // by the watch, if it hung and no later one has
	events string       // of its cgroup then
}

// WorkerEnd is how a worker ended.
type WorkerEnd struct {
	Rank  cohort.Rank
	Local int
	Host  string
	PID   int
	// Code is the exit status, or -N for signal N.
	Code int
	// Kind is the class of the cause ("exception", "lost_peer", ...), Words says it: "raised ValueError: bad batch 17".
	Kind      string
	Words     string
	Exception string
	Where     string
	Traceback string
	Advice    string
	// Started and Ended are zero for a worker that was not started, or that could not be ended.
	Started time.Time
	Ended   time.Time
	// LastOut and LastErr are its last lines.
	LastOut string
	LastErr string
}

// attemptOf returns what users see of an attempt.
func attemptOf(a agent.Attempt) Attempt {
	r := Attempt{
		Number: a.Number, Started: a.Started, Ended: a.Ended, Succeeded: a.Outcome.Succeeded(), Signal: int(a.Outcome.Signal),
		Hung: a.Outcome.Hung, Verdict: a.Verdict, World: a.World, First: a.First, Evidence: evidenceOf(a.Evidence),
		seen: a.Seen, events: a.CgroupEvents,
	}
	for _, w := range a.Workers {
		r.Workers = append(r.Workers, WorkerEnd{
			Rank: w.Rank, Local: w.Local, Host: w.Host, PID: w.PID, Code: w.Code, Kind: w.Cause.Kind.String(), Words: w.Cause.Words,
			Exception: w.Cause.Exception, Where: w.Cause.Where, Traceback: w.Cause.Traceback, Advice: w.Cause.Advice,
			Started: w.Started, Ended: w.Ended, LastOut: w.LastOut, LastErr: w.LastErr,
		})
	}
	return r
}

// attemptEnded appends an attempt and returns its sentence.
func (r *Report) attemptEnded(a agent.Attempt) string {
	ended := attemptOf(a)
	r.add(ended)
	return ended.Sentence()
}

// add appends an attempt. What the watch has seen can be large, so only that of the last attempt that hung is kept.
func (r *Report) add(a Attempt) {
	for i := range r.Attempts {
		if a.seen != nil {
			r.Attempts[i].seen = nil
		}
	}
	r.Attempts = append(r.Attempts, a)
}

// Of returns the end of a rank, or nil.
func (a *Attempt) Of(rank cohort.Rank) *WorkerEnd {
	for i := range a.Workers {
		if a.Workers[i].Rank == rank {
			return &a.Workers[i]
		}
	}
	return nil
}

// Sentence says how the attempt ended.
func (a *Attempt) Sentence() string {
	first := a.Of(a.First)
	switch {
	case a.Succeeded:
		return "the job succeeded"
	case a.Signal != 0:
		return "the job was ended by " + postmortem.Code(-a.Signal)
	case a.Hung:
		return agent.HungSentence(a.Verdict)
	case first == nil:
		return "the job was stopped"
	}
	if early := a.early(); len(early) > 0 {
		return fmt.Sprintf("%s ended with exit code 0 while others still needed %s; then rank %d %s", ranklist.Named(early),
			map[bool]string{true: "it", false: "them"}[len(early) == 1], first.Rank, first.Words)
	}
	if s := a.suspect(); s != nil {
		return fmt.Sprintf(
			"rank %d %s; the cause is probably rank %d, which was in %s and was stopped before it reported an error", first.Rank,
			first.Words, s.Rank, s.Doing)
	}
	return fmt.Sprintf("rank %d %s", first.Rank, first.Words)
}

// leaving is how long a process may take to end after it has closed its connections: Python's interpreter and PyTorch's libraries
// are taken down after that, and the rank that lost the connection can be faster.
const leaving = time.Second

// early returns the ranks that had ended with 0, or were about to, when the first failure came, if all failures are consequences:
// they left while others needed them.
func (a *Attempt) early() []cohort.Rank {
	first := a.Of(a.First)
	if first == nil || !consequence(first) {
		return nil
	}
	var all []cohort.Rank
	for _, w := range a.Workers {
		if w.Kind == postmortem.Success.String() && !w.Ended.IsZero() && w.Ended.Before(first.Ended.Add(leaving)) {
			all = append(all, w.Rank)
		}
	}
	return all
}

// consequence reports whether a worker's end was another one's doing.
func consequence(w *WorkerEnd) bool {
	return w.Kind == postmortem.LostPeer.String() || w.Kind == postmortem.Timeout.String()
}

// suspect returns the one rank that is left as the cause when all failures are consequences: the only one that had to be
// stopped and that was not waiting for the others.
func (a *Attempt) suspect() *RankState {
	if first := a.Of(a.First); first == nil || !consequence(first) {
		return nil
	}
	var left []*RankState
	for _, w := range a.Workers {
		if s := a.Evidence.Of(w.Rank); w.Kind == postmortem.Stopped.String() && s != nil && s.Doing != "" {
			left = append(left, s)
		}
	}
	if len(left) != 1 {
		return nil
	}
	return left[0]
}

// finish fills in how the job has ended. ctx is that of the caller.
func (r *Report) finish(ctx context.Context, end agent.End) {
	r.Ended, r.Signal, r.MaxRestarts = time.Now(), end.Signal, end.MaxRestarts
	if end.Job != nil {
		r.setEnd(*end.Job)
	}
	r.judge(ctx, end.Err)
}

// judge fills in what the attempts say together. trouble is an error of the launcher itself, or nil; ctx is that of the caller.
func (r *Report) judge(ctx context.Context, trouble error) {
	last := &Attempt{Signal: r.Signal, First: cohort.NoRank}
	if n := len(r.Attempts); n > 0 && (r.Signal == 0 || r.Attempts[n-1].Signal != 0 || r.Attempts[n-1].Succeeded) {
		last = &r.Attempts[n-1]
	}
	switch {
	case trouble != nil:
		r.Succeeded, r.Sentence, r.err = false, trouble.Error(), trouble
		if e, ok := errors.AsType[*cohort.Error](trouble); ok && e.Detail != "" {
			r.Sentence = e.Detail
		}
	case r.decided:
	case last.Succeeded:
		r.Succeeded = true
	default:
		r.Sentence = last.Sentence()
		r.err = last.err(ctx, r.Signal, r.Sentence)
	}
}

// err returns the error of an attempt that failed. signal is what the launcher was sent: an attempt can also be ended by ctx.
func (a *Attempt) err(ctx context.Context, signal int, sentence string) error {
	e := cohort.New(op, cohort.Remote, strings.TrimPrefix(sentence, "rank "+a.First.String()+" "))
	switch {
	case a.Signal != 0 && signal == 0 && ctx.Err() != nil:
		return cohort.Ended(ctx, op)
	case a.Signal != 0:
		e.Code = cohort.Aborted
	case a.Hung:
		e.Code = cohort.DeadlineExceeded
	default:
		e.Rank = a.First
	}
	return e
}

// setEnd takes how the whole job has ended from another launcher, or from the loss of it.
func (r *Report) setEnd(end launchcore.End) {
	r.decided, r.Succeeded, r.Sentence = true, end.OK, end.Sentence
	if end.OK {
		return
	}
	e := cohort.New(op, end.Code, end.Sentence)
	if end.Rank != nil {
		e.Rank, e.Detail = *end.Rank, strings.TrimPrefix(e.Detail, "rank "+end.Rank.String()+" ")
	}
	r.err = e
}

// Err returns nil if the job succeeded. Otherwise the code of the error says why it failed: [cohort.Remote] for a
// worker that failed, with its rank; [cohort.DeadlineExceeded] for a job that hung and was stopped, or for nodes that
// did not join in time; [cohort.Aborted] for a signal; [cohort.Canceled] for the end of the context; [cohort.PeerLost]
// for a node or a supervisor process that is lost.
func (r *Report) Err() error {
	if r.Succeeded {
		return nil
	}
	if r.err == nil { // it was read from a file
		return cohort.New(op, cohort.Unknown, r.Sentence)
	}
	return r.err
}

// ExitCode returns the exit status of the first failure: its own, or 128+N for signal N. It is 0 for a success.
func (r *Report) ExitCode() int {
	if r.Succeeded {
		return 0
	}
	if r.Signal != 0 {
		return 128 + r.Signal
	}
	if n := len(r.Attempts); n > 0 {
		last := &r.Attempts[n-1]
		if w := last.Of(last.First); w != nil {
			if w.Code < 0 {
				return 128 - w.Code
			}
			return w.Code
		}
	}
	return 1
}

// String says how the job ended, in one line.
func (r *Report) String() string {
	switch {
	case r.Succeeded:
		return "job " + r.RunID + " succeeded"
	case r.Sentence != "":
		return "job " + r.RunID + " failed: " + r.Sentence
	}
	return "job " + r.RunID + " failed"
}
