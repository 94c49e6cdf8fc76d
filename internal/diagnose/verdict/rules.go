// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

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

// The rules are asked in this order, and the first that finds something gives the verdict. The order means: what is certain of one process
// or one setting comes before what several ranks do together, what PyTorch and NCCL have recorded before what their stacks look like,
// and a rank that is absent from an operation before ranks that disagree about it. A rule may therefore rely on the ones before it: it needs
// not ask whether a rank has ended, is stopped or was told another store. Within a stage a rule that says more comes before one that says less.
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
