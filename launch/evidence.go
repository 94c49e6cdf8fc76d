// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/bundle"
	"github.com/cohort-dist/cohort/internal/diagnose/jobdoc"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/agent"
)

// Evidence is what was observed when a job failed or hung, before any worker was signalled.
type Evidence struct {
	Taken time.Time
	Took  time.Duration
	Ranks []RankState
	// Waits are the store's waiters.
	Waits []StoreWait
}

// RankState is what a live worker was doing.
type RankState struct {
	Rank cohort.Rank
	PID  int
	// Doing is the line of the program that matters most, as text; empty where there is none.
	Doing string
	// Idle is how long its main thread had not run, so that it had been there for at least as long; 0: not known.
	Idle time.Duration
	// Stack is the text of all Python stacks, or of all goroutines; Error why there is none.
	Stack string
	Error string
}

// StoreWait is a client of the job's store that waits for a key.
type StoreWait struct {
	Key   string
	Rank  cohort.Rank // [cohort.NoRank]: not known
	Since time.Time
}

// Of returns the state of a rank, or nil.
func (e *Evidence) Of(rank cohort.Rank) *RankState {
	if e == nil {
		return nil
	}
	for i := range e.Ranks {
		if e.Ranks[i].Rank == rank {
			return &e.Ranks[i]
		}
	}
	return nil
}

// evidenceOf returns what users see of evidence.
func evidenceOf(a *agent.Evidence) *Evidence {
	if a == nil {
		return nil
	}
	e := &Evidence{Taken: a.Taken, Took: a.Took, Waits: waitsOf(a.Waits)}
	for _, r := range a.Ranks {
		e.Ranks = append(e.Ranks, RankState(r))
	}
	return e
}

// waitsOf returns what users see of waits in the store.
func waitsOf(waits []agent.StoreWait) []StoreWait {
	var all []StoreWait
	for _, w := range waits {
		all = append(all, StoreWait(w))
	}
	return all
}

// keptBundles is how many runs' evidence the default folder holds.
const keptBundles = 10

// saveEvidence writes the bundle: the report, for each rank its stacks and last lines; of a job that hung also what the
// watch has seen, flight recorders included; and the flight recorders that PyTorch has written into the folder of the
// run in the last attempt. It holds no environment and no arguments, which may have secrets in them. root is where
// bundles are kept, "" for the default.
func (r *Report) saveEvidence(root, run string, logf func(format string, args ...any)) {
	if root == "" {
		root = bundle.Root()
		if root == "" {
			return
		}
		bundle.Prune(root, keptBundles-1) // before: that makes room, and the new one stays though the clock was set back
	}
	b := bundle.Create(root, r.RunID, r.Started)
	report, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		b.Write("report.json", append(report, '\n'))
		b.Write("report.txt", []byte(r.Text(nil)))
		for _, a := range slices.Backward(r.Attempts) { // the last one matters most
			saveAttempt(b, &a)
		}
		for _, a := range r.Attempts { // late, as it can take all the room that is left
			saveSeen(b, &a)
		}
		if n := len(r.Attempts); n > 0 { // those of others would be taken for the same ranks
			b.Keep(run, agent.RecorderPrefix+strconv.Itoa(r.Attempts[n-1].Number)+"_")
		}
		r.Bundle, err = b.Close()
	}
	if err != nil {
		r.Bundle = ""
		logf("the evidence cannot be written: %v", err)
	}
}

// saveAttempt writes the last lines and the stacks of an attempt's workers.
func saveAttempt(b *bundle.Bundle, a *Attempt) {
	for _, w := range a.Workers {
		name := fmt.Sprintf("attempt%d-rank%d", a.Number, w.Rank)
		b.Write(name+"-stderr.txt", []byte(w.LastErr))
		b.Write(name+"-stdout.txt", []byte(w.LastOut))
		if s := a.Evidence.Of(w.Rank); s != nil {
			b.Write(name+"-stack.txt", []byte(s.Stack))
		}
	}
	b.Write(fmt.Sprintf("attempt%d-cgroup.txt", a.Number), []byte(a.events))
}

// saveSeen writes what the watch has seen, without the flight recorders if they do not fit.
func saveSeen(b *bundle.Bundle, a *Attempt) {
	if a.seen == nil {
		return
	}
	write := func(recorders bool) bool {
		text, err := json.MarshalIndent(a.seenDocument(recorders), "", "  ")
		return err == nil && b.Write(fmt.Sprintf("attempt%d-seen.json", a.Number), text)
	}
	if !write(true) {
		write(false)
	}
}

// seenDocument is what the watch has seen of the attempt.
func (a *Attempt) seenDocument(recorders bool) *jobdoc.Document {
	seen := *a.seen
	if !recorders {
		seen.Notes = append(slices.Clip(seen.Notes), "the flight recorders were too large for the evidence")
	}
	v := verdict.Judge(seen)
	v.Hung = true
	if a.Verdict != "" {
		v.Sentence = a.Verdict
	}
	d := jobdoc.FromLook(jobdoc.Live, seen, v)
	d.Job.Attempt = new(a.Number)
	d.AddEvidence(seen, recorders)
	return d
}
