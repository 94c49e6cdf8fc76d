// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobdoc

import (
	"cmp"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// FromLook returns the document of a job that was looked at.
func FromLook(source string, j verdict.Job, v verdict.Verdict) *Document {
	d := &Document{
		Schema: Schema, Source: source, TakenAt: At(j.Taken),
		Job: Job{State: stateOf(v), World: j.World, Store: j.Store, Verdict: &Verdict{
			Sentence: v.Sentence, Hung: v.Hung, Sure: v.Hung || !v.Still && allRead(j, v), Culprits: ranklist.Short(v.Culprits),
			Proof: v.Proof,
		}},
	}
	for _, r := range j.Ranks {
		d.Ranks = append(d.Ranks, lookOf(r, v))
	}
	slices.SortStableFunc(d.Ranks, func(a, b Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, w := range j.Waits {
		d.Waits = append(d.Waits, WaitOf(w.Rank, w.Key, w.Age))
	}
	d.Job.Verdict.SinceS = since(d.Ranks)
	d.Count()
	return d
}

// allRead reports whether it is known of each rank what it does.
func allRead(j verdict.Job, v verdict.Verdict) bool {
	known := len(v.Activities)
	for _, r := range j.Ranks {
		if r.Gone != "" {
			known++
		}
	}
	return len(j.Ranks) > 0 && known >= len(j.Ranks)
}

// stateOf is the state of a job by its verdict.
func stateOf(v verdict.Verdict) string {
	switch {
	case v.Hung:
		return Hung
	case v.Still:
		return PerhapsHung
	}
	return Running
}

// WaitOf is a wait for a key; rank is negative if it is not known.
func WaitOf(rank int, key string, age time.Duration) Wait {
	w := Wait{Key: key, AgeS: Seconds(age)}
	if rank >= 0 {
		w.Rank = new(rank)
	}
	return w
}

// lookOf describes one rank that was looked at.
func lookOf(seen verdict.Rank, v verdict.Verdict) Rank {
	r := Rank{
		Rank: seen.Rank, Host: seen.Host, PID: seen.PID, Phase: Running, IdleS: Seconds(seen.Idle), State: seen.State, Object: seen.Object,
		Note: seen.Trouble,
	}
	r.AddReported(seen.Reported)
	switch {
	case seen.Gone == verdict.Succeeded:
		r.Phase = phaseDone
	case seen.Gone != "":
		r.Phase, r.Cause = phaseFailed, &Cause{Text: seen.Gone}
	case slices.Contains(v.Culprits, seen.Rank) && v.Hung:
		r.Mark = "culprit"
	case slices.Contains(v.Culprits, seen.Rank):
		r.Mark = "suspect"
	}
	for _, a := range v.Activities {
		if a.Rank == seen.Rank && seen.Gone == "" {
			r.Activity, r.Where = a.Doing, a.Where
		}
	}
	return r
}

// AddReported adds what the rank says of itself.
func (r *Rank) AddReported(said verdict.Reported) {
	r.Section, r.SectionS, r.Step, r.StepS = said.Section, Seconds(said.SectionAge), said.Steps, Seconds(said.StepAge)
}

// since is how long the culprits have stood where they are, at least; 0: not known.
func since(ranks []Rank) float64 {
	least := 0.0
	for _, r := range ranks {
		if r.Mark != "" && (least == 0 || r.IdleS < least) {
			least = r.IdleS
		}
	}
	return least
}
