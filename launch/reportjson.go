// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/jobdoc"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/launch/agent"
)

// MarshalJSON returns the report as cohort.job.v1.
func (r Report) MarshalJSON() ([]byte, error) { return json.Marshal(r.document()) }

// document is the report as programs read it.
func (r *Report) document() *jobdoc.Document {
	d := &jobdoc.Document{Schema: jobdoc.Schema, Source: jobdoc.Report, TakenAt: jobdoc.At(r.Ended), Job: r.job()}
	for i := range r.Attempts {
		a := &r.Attempts[i]
		entry, ranks, waits := a.document(r.Host)
		if i == len(r.Attempts)-1 {
			d.Job.Attempt, d.Job.World, d.Ranks, d.Waits = new(a.Number), a.World, ranks, waits
		} else {
			entry.Ranks, entry.Waits = ranks, waits
		}
		d.Attempts = append(d.Attempts, entry)
	}
	d.Count()
	if len(d.Nodes) == 0 && r.Host != "" {
		d.Nodes = []jobdoc.Node{{Host: r.Host}}
	}
	return d
}

// job is what concerns all ranks.
func (r *Report) job() jobdoc.Job {
	j := jobdoc.Job{
		ID: r.RunID, Program: r.Program, LocalWorld: r.Workers, MaxRestarts: new(r.MaxRestarts), State: jobdoc.Failed,
		StartedAt: jobdoc.At(r.Started), EndedAt: jobdoc.At(r.Ended), RunningS: jobdoc.Seconds(r.Ended.Sub(r.Started)), Signal: r.Signal,
		SignalName: signalName(r.Signal), ExitCode: new(r.ExitCode()), LogDir: r.LogDir, Bundle: r.Bundle,
		Verdict: &jobdoc.Verdict{Sentence: r.Sentence, Sure: true},
	}
	if r.Succeeded {
		j.State, j.Verdict.Sentence = jobdoc.Succeeded, "the job succeeded"
	}
	if n := len(r.Attempts); n > 0 && !r.Succeeded && r.Signal == 0 {
		last := r.Attempts[n-1].verdict()
		j.Verdict.Hung, j.Verdict.Culprits = last.Hung, last.Culprits
	}
	return j
}

// document returns the attempt, its ranks and its waits. host is that of ranks that name none.
func (a *Attempt) document(host string) (jobdoc.Attempt, []jobdoc.Rank, []jobdoc.Wait) {
	entry := jobdoc.Attempt{
		Attempt: a.Number, World: a.World, State: jobdoc.Failed, Verdict: a.verdict(), StartedAt: jobdoc.At(a.Started),
		EndedAt: jobdoc.At(a.Ended), Signal: a.Signal, SignalName: signalName(a.Signal),
	}
	if a.Succeeded {
		entry.State = jobdoc.Succeeded
	}
	var ranks []jobdoc.Rank
	for i := range a.Workers {
		rank := a.Workers[i].document()
		if rank.Host == "" {
			rank.Host = host
		}
		a.Evidence.Of(a.Workers[i].Rank).addTo(&rank)
		ranks = append(ranks, rank)
	}
	if a.Evidence == nil {
		return entry, ranks, nil
	}
	entry.LookedAt, entry.LookS = jobdoc.At(a.Evidence.Taken), jobdoc.Seconds(a.Evidence.Took)
	var waits []jobdoc.Wait
	for _, w := range a.Evidence.Waits {
		waits = append(waits, jobdoc.WaitOf(int(w.Rank), w.Key, a.Evidence.Taken.Sub(w.Since)))
	}
	return entry, ranks, waits
}

// verdict says how the attempt has ended.
func (a *Attempt) verdict() jobdoc.Verdict {
	v := jobdoc.Verdict{Sentence: a.Sentence(), Hung: a.Hung, Sure: true}
	if a.Of(a.First) != nil && !a.Succeeded && a.Signal == 0 {
		v.Culprits = a.First.String()
	}
	return v
}

// document is how a worker has ended.
func (w *WorkerEnd) document() jobdoc.Rank {
	r := jobdoc.Rank{
		Rank: int(w.Rank), Host: w.Host, LocalRank: new(w.Local), PID: w.PID, Phase: jobdoc.Phase(w.Kind),
		StartedAt: jobdoc.At(w.Started), EndedAt: jobdoc.At(w.Ended), LastStderr: w.LastErr,
		Cause: &jobdoc.Cause{
			Kind: w.Kind, Text: w.Words, Exception: w.Exception, Where: w.Where, Traceback: w.Traceback, Advice: w.Advice,
		},
	}
	if w.Code < 0 {
		r.Signal, r.SignalName = -w.Code, signalName(-w.Code)
	} else {
		r.ExitCode = new(w.Code)
	}
	return r
}

// addTo adds what a worker was doing, if that is known.
func (s *RankState) addTo(r *jobdoc.Rank) {
	if s != nil {
		r.Where, r.IdleS, r.Stack, r.StackError = s.Doing, jobdoc.Seconds(s.Idle), s.Stack, s.Error
	}
}

// signalName is the name of a signal, "" for none.
func signalName(n int) string {
	if n == 0 {
		return ""
	}
	return postmortem.Code(-n)
}

// UnmarshalJSON reads a report of the form cohort.job.v1.
func (r *Report) UnmarshalJSON(b []byte) error {
	var d jobdoc.Document
	if err := json.Unmarshal(b, &d); err != nil {
		return fmt.Errorf("launch: this is not a report: %w", err)
	}
	if d.Schema != jobdoc.Schema {
		return fmt.Errorf("launch: this is not a report: its \"schema\" is %.100q, not %q; one that an earlier version has "+
			"written has its text in report.txt", d.Schema, jobdoc.Schema)
	}
	j := &d.Job
	*r = Report{
		RunID: j.ID, Program: j.Program, Workers: j.LocalWorld, Started: j.StartedAt, Ended: j.EndedAt,
		Succeeded: j.State == jobdoc.Succeeded, Signal: j.Signal, LogDir: j.LogDir, Bundle: j.Bundle,
	}
	if j.MaxRestarts != nil {
		r.MaxRestarts = *j.MaxRestarts
	}
	if j.Verdict != nil && !r.Succeeded {
		r.Sentence = j.Verdict.Sentence
	}
	if len(d.Nodes) > 0 {
		r.Host = d.Nodes[0].Host
	}
	for i, a := range d.Attempts {
		if i == len(d.Attempts)-1 {
			a.Ranks, a.Waits = d.Ranks, d.Waits
		}
		r.Attempts = append(r.Attempts, readAttempt(a))
	}
	return nil
}

// readAttempt is the reverse of [Attempt.document].
func readAttempt(d jobdoc.Attempt) Attempt {
	a := Attempt{
		Number: d.Attempt, World: d.World, Started: d.StartedAt, Ended: d.EndedAt, Succeeded: d.State == jobdoc.Succeeded,
		Signal: d.Signal, Hung: d.Verdict.Hung, First: cohort.NoRank,
	}
	if a.Hung {
		a.Verdict = strings.TrimPrefix(d.Verdict.Sentence, agent.HungSentence(""))
	}
	if !d.LookedAt.IsZero() {
		a.Evidence = &Evidence{Taken: d.LookedAt, Took: jobdoc.Duration(d.LookS)}
		for _, w := range d.Waits {
			a.Evidence.Waits = append(a.Evidence.Waits, readWait(w, d.LookedAt))
		}
	}
	for _, rank := range d.Ranks {
		end := readEnd(rank)
		a.Workers = append(a.Workers, end)
		if strconv.Itoa(rank.Rank) == d.Verdict.Culprits {
			a.First = end.Rank
		}
		if s := readState(rank); a.Evidence != nil && s != (RankState{Rank: s.Rank, PID: s.PID}) {
			a.Evidence.Ranks = append(a.Evidence.Ranks, s)
		}
	}
	return a
}

func readWait(w jobdoc.Wait, taken time.Time) StoreWait {
	s := StoreWait{Key: w.Key, Rank: cohort.NoRank, Since: taken.Add(-jobdoc.Duration(w.AgeS))}
	if w.Rank != nil {
		s.Rank = cohort.Rank(*w.Rank)
	}
	return s
}

func readState(r jobdoc.Rank) RankState {
	return RankState{
		Rank: cohort.Rank(r.Rank), PID: r.PID, Doing: r.Where, Idle: jobdoc.Duration(r.IdleS), Stack: r.Stack, Error: r.StackError,
	}
}

// readEnd is the reverse of [WorkerEnd.document].
func readEnd(r jobdoc.Rank) WorkerEnd {
	w := WorkerEnd{
		Rank: cohort.Rank(r.Rank), Host: r.Host, PID: r.PID, Code: -r.Signal, Started: r.StartedAt, Ended: r.EndedAt,
		LastErr: r.LastStderr,
	}
	if r.LocalRank != nil {
		w.Local = *r.LocalRank
	}
	if r.ExitCode != nil {
		w.Code = *r.ExitCode
	}
	if c := r.Cause; c != nil {
		w.Kind, w.Words, w.Exception, w.Where, w.Traceback, w.Advice = c.Kind, c.Text, c.Exception, c.Where, c.Traceback, c.Advice
	}
	return w
}
