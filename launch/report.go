// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// Report says how a job ended.
type Report struct {
	RunID       string    `json:"run_id"`
	Program     string    `json:"program"`
	Host        string    `json:"host"`
	Workers     int       `json:"workers"`
	MaxRestarts int       `json:"max_restarts"`
	Started     time.Time `json:"started"`
	Ended       time.Time `json:"ended"`
	Succeeded   bool      `json:"succeeded"`
	// Signal is the signal that the user ended the job with, or 0.
	Signal int `json:"signal,omitempty"`
	// Sentence says why it failed: "rank 1 raised ValueError: bad batch 17".
	Sentence string    `json:"sentence,omitempty"`
	Attempts []Attempt `json:"attempts"`
	// LogDir is where the log files are, Bundle where the evidence is; "" if there is none.
	LogDir string `json:"log_dir,omitempty"`
	Bundle string `json:"bundle,omitempty"`

	err error // what Err returns if the job failed
	// told says that Succeeded, Sentence and err are those of the whole job, which another launcher has told.
	told bool
}

// Attempt is one try to run the job.
type Attempt struct {
	Number    int       `json:"number"`
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended"`
	Succeeded bool      `json:"succeeded"`
	Signal    int       `json:"signal,omitempty"`
	Hung      bool      `json:"hung,omitempty"`
	// Verdict says why it hung.
	Verdict string `json:"verdict,omitempty"`
	// Workers are in the order of ranks.
	Workers []WorkerEnd `json:"workers"`
	// First is the rank that failed first, [cohort.NoRank] if none has.
	First    cohort.Rank `json:"first"`
	Evidence *Evidence   `json:"evidence,omitempty"`

	seen   *verdict.Job // by the watch, if it hung and no later one has
	events string       // of its cgroup then
}

// WorkerEnd is how a worker ended.
type WorkerEnd struct {
	Rank  cohort.Rank `json:"rank"`
	Local int         `json:"local_rank"`
	Host  string      `json:"host"`
	PID   int         `json:"pid"`
	// Code is the exit status, or -N for signal N.
	Code int `json:"code"`
	// Kind is the class of the cause ("exception", "lost_peer", ...), Words says it: "raised ValueError: bad batch 17".
	Kind      string `json:"kind"`
	Words     string `json:"words"`
	Exception string `json:"exception,omitempty"`
	Where     string `json:"where,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	Advice    string `json:"advice,omitempty"`
	// Started and Ended are zero for a worker that was not started, or that could not be ended.
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// LastOut and LastErr are its last lines.
	LastOut string `json:"-"`
	LastErr string `json:"last_stderr,omitempty"`
}

// result writes down how an attempt ended.
func (a *attempt) result(o launchcore.Outcome) Attempt {
	r := Attempt{
		Number: a.place.attempt, Started: a.started, Ended: time.Now(), Succeeded: o.Succeeded(), Signal: int(o.Signal),
		Hung: o.Hung, Verdict: a.hang.verdict, First: cohort.NoRank, Evidence: a.found,
		seen: a.hang.seen, events: a.hang.events,
	}
	for _, w := range a.workers {
		end := WorkerEnd{
			Rank: w.rank, Local: w.local, Host: a.job.host, PID: w.pid, Kind: w.cause.Kind.String(), Words: w.cause.Words,
			Exception: w.cause.Exception, Where: w.cause.Where, Traceback: w.cause.Traceback, Advice: w.cause.Advice,
			Started: w.started, Ended: w.ended,
		}
		switch {
		case w.exit != nil:
			end.Code = w.exit.Code
		case w.refused != "":
			end.Code = 127
		case w.pid == 0:
			end.Kind, end.Words = postmortem.Stopped.String(), "was not started"
		default:
			end.Kind, end.Words, end.Code = postmortem.Stopped.String(), "did not end after SIGKILL: the kernel holds it", -9
		}
		if w.exit != nil && w.exit.Code != 0 || o.Hung {
			if w.err != nil {
				end.LastErr = w.err.Last()
			}
			if w.out != nil {
				end.LastOut = w.out.Last()
			}
		}
		r.Workers = append(r.Workers, end)
	}
	a.keepEvents(r.Workers)
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
		r.First = cohort.Rank(failures[i].Rank)
	}
	return r
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
		return "the job stood still and was stopped: " + strings.TrimSuffix(a.Verdict, ".")
	case first == nil:
		return "the job was stopped"
	}
	if early := a.early(); len(early) > 0 {
		return fmt.Sprintf("%s ended with exit code 0 while others still needed %s; then rank %d %s", ranklist.Named(early), map[bool]string{true: "it", false: "them"}[len(early) == 1], first.Rank, first.Words)
	}
	if s := a.suspect(); s != nil {
		return fmt.Sprintf("rank %d %s; the cause is probably rank %d, which was in %s and was stopped before it said why", first.Rank, first.Words, s.Rank, s.Doing)
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
	case r.told:
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

// tell takes how the whole job has ended from another launcher, or from the loss of it.
func (r *Report) tell(end launchcore.End) {
	r.told, r.Succeeded, r.Sentence = true, end.OK, end.Sentence
	if end.OK {
		return
	}
	e := cohort.New(op, end.Code, end.Sentence)
	if end.Rank != nil {
		e.Rank, e.Detail = *end.Rank, strings.TrimPrefix(e.Detail, "rank "+end.Rank.String()+" ")
	}
	r.err = e
}

// Err returns nil if the job succeeded. Otherwise the code of the error says why it failed: [cohort.Remote] for a worker that
// failed, with its rank; [cohort.DeadlineExceeded] for a job that hung and was stopped, or for nodes that did not come in time;
// [cohort.Aborted] for a signal; [cohort.Canceled] for the end of the context; [cohort.PeerLost] for a node or keeper that is gone.
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

// Text returns the report for people. paint, if set, makes a heading stand out.
func (r *Report) Text(paint func(string) string) string {
	if paint == nil {
		paint = func(s string) string { return s }
	}
	if r.Succeeded {
		return ""
	}
	var b strings.Builder
	heading := r.Sentence
	if !strings.HasPrefix(heading, "the job ") {
		heading = "the job failed: " + heading
	}
	b.WriteString(paint("cohort: "+heading) + "\n")
	if len(r.Attempts) == 0 {
		return b.String()
	}
	last := &r.Attempts[len(r.Attempts)-1]
	if first := last.Of(last.First); first != nil && last.Signal == 0 && !last.Hung {
		describeFirst(&b, first)
	}
	r.describeOthers(&b, last)
	if len(r.Attempts) > 1 {
		b.WriteString("  attempts:\n")
		for i := range r.Attempts {
			a := &r.Attempts[i]
			fmt.Fprintf(&b, "    %d: %s, after %s\n", a.Number, a.Sentence(), span(a.Started, a.Ended))
		}
	}
	if r.LogDir != "" {
		fmt.Fprintf(&b, "  logs: %s\n", r.LogDir)
	}
	if r.Bundle != "" {
		fmt.Fprintf(&b, "  evidence: %s\n", r.Bundle)
	}
	return b.String()
}

func describeFirst(b *strings.Builder, w *WorkerEnd) {
	fmt.Fprintf(b, "  rank %d (host %s, local rank %d", w.Rank, w.Host, w.Local)
	if w.PID != 0 {
		fmt.Fprintf(b, ", pid %d", w.PID)
	}
	fmt.Fprintf(b, "): %s", postmortem.Code(w.Code))
	if !w.Started.IsZero() {
		fmt.Fprintf(b, ", after %s", span(w.Started, w.Ended))
	}
	if w.Where != "" {
		fmt.Fprintf(b, ", in %s", w.Where)
	}
	b.WriteString("\n")
	text := w.Traceback
	if text == "" {
		text = lastLines(w.LastErr, 10)
	}
	if text != "" {
		b.WriteString("\n" + indent(text, "    ") + "\n\n")
	}
	if w.Advice != "" {
		fmt.Fprintf(b, "  try: %s\n", w.Advice)
	}
}

// describeOthers says what became of the other ranks, those with the same fate in one line.
func (r *Report) describeOthers(b *strings.Builder, a *Attempt) {
	fates := map[string][]cohort.Rank{}
	var order []string
	for _, w := range a.Workers {
		if w.Rank == a.First && a.Signal == 0 && !a.Hung {
			continue
		}
		fate := strings.TrimPrefix(w.Words, "was ")
		if w.Where != "" {
			fate += ", in " + w.Where
		} else if s := a.doing(w.Rank); s != nil {
			fate += ", in " + s.Doing
		}
		if fates[fate] == nil {
			order = append(order, fate)
		}
		fates[fate] = append(fates[fate], w.Rank)
	}
	if len(order) == 0 {
		return
	}
	heading := "  the others:\n"
	if a.Of(a.First) == nil || a.Signal != 0 || a.Hung {
		heading = "  the ranks:\n"
	}
	b.WriteString(heading)
	for _, fate := range order {
		ranks := fates[fate]
		slices.Sort(ranks)
		fmt.Fprintf(b, "    %s: %s%s\n", ranklist.Named(ranks), fate, a.since(ranks))
	}
}

// doing returns what a rank was doing that had to be stopped, or nil if that is not known.
func (a *Attempt) doing(rank cohort.Rank) *RankState {
	s, w := a.Evidence.Of(rank), a.Of(rank)
	if s == nil || s.Doing == "" || w.Where != "" {
		return nil
	}
	if w.Kind == postmortem.Stopped.String() || a.Signal != 0 && w.Code != 0 { // some answer to a signal with an error of their own
		return s
	}
	return nil
}

// since says how long at least ranks had been where they were when the first failure came; "" if that is not known of all, or too short to matter.
func (a *Attempt) since(ranks []cohort.Rank) string {
	var least, most time.Duration
	for i, rank := range ranks {
		s := a.doing(rank)
		if s == nil || s.Idle < time.Second {
			return ""
		}
		if i == 0 || s.Idle < least {
			least = s.Idle
		}
		most = max(most, s.Idle)
	}
	if from, to := int(least.Seconds()), int(most.Seconds()); from != to {
		return fmt.Sprintf(" for at least %d to %d s", from, to)
	}
	return fmt.Sprintf(" for at least %d s", int(least.Seconds()))
}

func span(from, to time.Time) string {
	d := to.Sub(from)
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}
