// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

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
	return r.Wakes > 0 && r.Wakes <= soon || r.Moved && !c.at[rank].waits()
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

// Stood returns the sentence for a job that has stood still for as long as it may. Whether that is a hang is said by the time, not by one look.
func (v Verdict) Stood() string { return upper(strings.TrimPrefix(v.Sentence, perhaps)) }

// asleep reports whether ranks that do not wait for each other stand still for good, as far as time tells: none has run for long,
// and none sleeps until a time that it has chosen.
func (c *analysis) asleep() bool {
	return len(c.ranks(func(r Rank, _ position) bool { return r.Main != nil && (r.Idle < long || r.Wakes > 0) })) == 0
}
