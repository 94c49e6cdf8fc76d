// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// rule finds one kind of hang.
type rule struct {
	name string
	find func(*analysis) (Verdict, bool)
}

// stage is a kind of evidence.
type stage struct {
	name  string
	rules []rule
}

// The rules are asked in this order, and the first that finds something gives the verdict. The order means: what is
// certain of one process or one setting comes before what several ranks do together, what PyTorch and NCCL have
// recorded before what their stacks look like, and a rank that is absent from an operation before ranks that disagree
// about it. A rule may therefore rely on the ones before it: it needs not ask whether a rank has ended, is stopped or
// was given another store. Within a stage a rule that says more comes before one that says less.
var stages = []stage{
	{"settings: what the ranks were told does not fit together, so they cannot meet", []rule{
		{"worlds", (*analysis).worlds},
		{"numbers", (*analysis).numbers},
		{"stores", (*analysis).stores},
		{"strays", (*analysis).strays},
	}},
	{"processes: one that is gone, or cannot go on whatever the others do", []rule{
		{"broken", (*analysis).broken},
		{"gone", (*analysis).gone},
		{"twice", (*analysis).twice},
		{"unreachable", (*analysis).unreachable},
		{"lacking", (*analysis).lacking},
		{"stopped", (*analysis).stopped},
		{"frozen", (*analysis).frozen},
		{"kernel", (*analysis).kernel},
		{"lock", (*analysis).lock},
		{"dialing", (*analysis).dialing},
	}},
	{"records: what PyTorch and NCCL have counted", []rule{
		{"recorders", (*analysis).recorders},
		{"communicators", (*analysis).communicators},
	}},
	{"absence: a rank is not where the others wait for it", []rule{
		{"messages", (*analysis).messages},
		{"starting", (*analysis).starting},
		{"called", (*analysis).called},
		{"handlers", (*analysis).handlers},
		{"serving", (*analysis).serving},
		{"rpc", (*analysis).rpc},
		{"missing", (*analysis).missing},
	}},
	{"disagreement: all have come, to different things", []rule{
		{"rooted", (*analysis).rooted},
		{"mismatch", (*analysis).mismatch},
		{"dialingLater", (*analysis).dialingLater},
		{"devices", (*analysis).devices},
		{"same", (*analysis).same},
	}},
	{"leftovers: no rank waits for another as far as stacks tell", []rule{
		{"polling", (*analysis).polling},
		{"store", (*analysis).store},
		{"unmatched", (*analysis).unmatched},
	}},
}

// judge asks the rules.
func (c *analysis) judge() Verdict {
	if len(c.job.Ranks) == 0 {
		return c.fromStore()
	}
	for _, s := range stages {
		for _, r := range s.rules {
			if v, found := r.find(c); found {
				v.Hung = !v.Still
				return v
			}
		}
	}
	return c.busy()
}

const (
	// soon is the time within which a rank that sleeps goes on, so that those who wait for it do not hang.
	soon = time.Minute
	// long is the time after which ranks that do nothing hang, though none of them waits for another.
	long = 5 * time.Minute
)

// spent says for how long a rank has not run, and for how long it is going to sleep.
func (c *analysis) spent(rank int) string {
	r := c.rank(rank)
	if r.Wakes < time.Second || r.Moved {
		return since(r.Idle)
	}
	return since(r.Idle) + ", and for " + strconv.FormatInt(int64(r.Wakes.Seconds()), 10) + " s more"
}

// goesOn reports whether a rank is going to get on with its program, whatever the others do.
func (c *analysis) goesOn(rank int) bool {
	r := c.rank(rank)
	if r == nil || r.Gone != "" || r.Frozen || r.State == "T" || r.State == "t" {
		return false
	}
	return r.Wakes > 0 && r.Wakes <= soon || r.Moved && !c.at[rank].waits() || c.computes(r)
}

// computes reports whether a rank is in code of its own and has a processor, and the others have not waited for long: a step may take that
// time, and no look tells it from a loop without an end.
func (c *analysis) computes(r *Rank) bool {
	return c.at[r.Rank].class == inProgram && r.atWork() && c.waited(c.waiting()) < long
}

// tempered takes it back that a job hangs where all ranks that the others wait for go on by themselves.
func (c *analysis) tempered(v Verdict) Verdict {
	if !v.Hung || len(v.Culprits) == 0 || slices.ContainsFunc(v.Culprits, func(n int) bool { return !c.goesOn(n) }) {
		return v
	}
	v.Hung, v.Still = false, true
	v.Sentence = perhaps + lower(v.Sentence)
	return v
}

// perhaps begins what is said of a job that stands still without a proof that it hangs.
const perhaps = "Perhaps not hung: "

// Stood returns the sentence for a job that has stood still for as long as it may. Whether that is a hang is said by
// the time, not by one look.
func (v Verdict) Stood() string { return upper(strings.TrimPrefix(v.Sentence, perhaps)) }

// asleep reports whether ranks that do not wait for each other stand still for good, as far as time shows: none has run for long,
// and none sleeps until a time that it has chosen.
func (c *analysis) asleep() bool {
	return len(c.ranks(func(r Rank, _ position) bool { return r.Main != nil && (r.Idle < long || r.Wakes > 0) })) == 0
}
