// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

// rule finds one kind of hang.
type rule struct {
	name string
	find func(*court) (Verdict, bool)
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
		{"worlds", (*court).worlds},
		{"numbers", (*court).numbers},
		{"stores", (*court).stores},
		{"strays", (*court).strays},
	}},
	{"processes: one that is gone, or cannot go on whatever the others do", []rule{
		{"broken", (*court).broken},
		{"gone", (*court).gone},
		{"twice", (*court).twice},
		{"unreachable", (*court).unreachable},
		{"lacking", (*court).lacking},
		{"stopped", (*court).stopped},
		{"frozen", (*court).frozen},
		{"kernel", (*court).kernel},
		{"lock", (*court).lock},
		{"dialing", (*court).dialing},
	}},
	{"records: what PyTorch and NCCL have counted", []rule{
		{"recorders", (*court).recorders},
		{"communicators", (*court).communicators},
	}},
	{"absence: a rank is not where the others wait for it", []rule{
		{"messages", (*court).messages},
		{"starting", (*court).starting},
		{"called", (*court).called},
		{"handlers", (*court).handlers},
		{"serving", (*court).serving},
		{"rpc", (*court).rpc},
		{"missing", (*court).missing},
	}},
	{"disagreement: all have come, to different things", []rule{
		{"rooted", (*court).rooted},
		{"mismatch", (*court).mismatch},
		{"dialingLater", (*court).dialingLater},
		{"devices", (*court).devices},
		{"same", (*court).same},
	}},
	{"leftovers: nobody waits for another rank as far as stacks tell", []rule{
		{"polling", (*court).polling},
		{"store", (*court).store},
		{"unmatched", (*court).unmatched},
	}},
}

// judge asks the rules.
func (c *court) judge() Verdict {
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
