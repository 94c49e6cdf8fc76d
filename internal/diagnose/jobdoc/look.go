// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobdoc

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
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

// AddEvidence adds what a look has read of each rank beside what it does: stacks, and flight recorders unless they are left out.
func (d *Document) AddEvidence(j verdict.Job, recorders bool) {
	for i := range d.Ranks {
		for _, seen := range j.Ranks {
			if seen.Rank != d.Ranks[i].Rank || seen.PID != d.Ranks[i].PID {
				continue
			}
			d.Ranks[i].Stack = stackOf(seen)
			if recorders && seen.Dump != nil {
				d.Ranks[i].Recorder = recorderOf(seen.Dump)
			}
		}
	}
}

// stackOf is the text of all stacks of a rank.
func stackOf(r verdict.Rank) string {
	var b strings.Builder
	for _, t := range r.Threads {
		b.WriteString(t.String())
	}
	return b.String()
}

// recorderOf is a flight recorder as the document has it.
func recorderOf(dump *torchdump.Dump) []Op {
	all := make([]Op, 0, len(dump.Entries))
	for _, e := range dump.Entries {
		op := Op{
			Group: e.Group, Title: e.Desc, Backend: e.Backend, Op: e.Op, Number: e.Seq, Message: e.P2P, Open: e.Open, Sizes: e.Sizes,
			Types: e.Types, Where: e.Where,
		}
		if e.Created > 0 {
			op.CalledAt = At(time.Unix(0, e.Created))
		}
		if e.P2P && e.Peer >= 0 {
			op.Peer = new(e.Peer)
		}
		all = append(all, op)
	}
	return all
}

// nodesOf returns the hosts of ranks, in the order in which they come.
func nodesOf(ranks []Rank) []Node {
	var hosts []string
	on := map[string][]int{}
	for _, r := range ranks {
		if r.Host == "" {
			continue
		}
		if on[r.Host] == nil {
			hosts = append(hosts, r.Host)
		}
		on[r.Host] = append(on[r.Host], r.Rank)
	}
	var all []Node
	for _, host := range hosts {
		all = append(all, Node{Host: host, Ranks: ranklist.Short(on[host])})
	}
	return all
}
