// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// open is the first unfinished collective of a rank in a group.
type open struct {
	entry torchdump.Entry
	group string
}

// recordings is what the flight recorders of all ranks tell together.
type recordings struct {
	opens   map[int]open                       // by rank
	last    map[string]map[int]torchdump.Entry // by group and rank
	members map[string][]int                   // of a group, as far as they are known
}

// recordings reads the recorders.
func (c *analysis) recordings() recordings {
	rec := recordings{map[int]open{}, map[string]map[int]torchdump.Entry{}, map[string][]int{}}
	for _, r := range c.job.Ranks {
		if r.Dump == nil {
			continue
		}
		maps.Copy(rec.members, r.Dump.Members)
		for _, e := range r.Dump.Entries {
			if e.P2P {
				continue
			}
			if rec.last[e.Group] == nil {
				rec.last[e.Group] = map[int]torchdump.Entry{}
			}
			if e.Seq >= rec.last[e.Group][r.Rank].Seq {
				rec.last[e.Group][r.Rank] = e
			}
			if _, found := rec.opens[r.Rank]; !found && e.Open && !r.Moved { // one that moves does not wait for it
				rec.opens[r.Rank] = open{e, e.Group}
			}
		}
	}
	return rec
}

// groups returns the groups in which a rank waits.
func (rec recordings) groups() []string {
	var all []string
	for _, o := range rec.opens {
		if !slices.Contains(all, o.group) {
			all = append(all, o.group)
		}
	}
	slices.Sort(all)
	return all
}

// oldest returns the unfinished collective of a group that comes first.
func (rec recordings) oldest(group string) open {
	var first open
	for _, o := range rec.opens {
		if o.group == group && (first.group == "" || o.entry.Seq < first.entry.Seq) {
			first = o
		}
	}
	return first
}

// recorders judges by flight recorder dumps: PyTorch's own record of what each rank has called.
func (c *analysis) recorders() (Verdict, bool) {
	rec := c.recordings()
	if len(rec.opens) == 0 {
		return Verdict{}, false
	}
	if v, found := c.crossed(rec); found {
		return v, true
	}
	var behind *Verdict
	for _, key := range rec.groups() {
		v, found := c.group(key, rec)
		waits := func(n int) bool { return rec.opens[n].group != "" && rec.opens[n].group != key }
		switch {
		case found && !slices.ContainsFunc(v.Culprits, waits):
			return v, true
		case found && behind == nil:
			behind = &v // it waits in another group itself: that says more
		}
	}
	if behind == nil {
		return Verdict{}, false
	}
	return *behind, true
}

// crossed: two ranks wait for each other in different groups.
func (c *analysis) crossed(rec recordings) (Verdict, bool) {
	for _, a := range c.job.Ranks {
		for _, b := range c.job.Ranks {
			oa, foundA := rec.opens[a.Rank]
			ob, foundB := rec.opens[b.Rank]
			if a.Rank >= b.Rank || !foundA || !foundB || oa.group == ob.group || !c.belongs(b.Rank, oa, rec) ||
				!c.belongs(a.Rank, ob, rec) {
				continue
			}
			if rec.last[oa.group][b.Rank].Seq < oa.entry.Seq && rec.last[ob.group][a.Rank].Seq < ob.entry.Seq {
				return Verdict{
					Culprits: []int{a.Rank, b.Rank},
					Sentence: fmt.Sprintf(
						"Ranks %d and %d wait for each other in different groups: rank %d in %s of %s (%s), rank %d in %s of %s (%s).",
						a.Rank, b.Rank, a.Rank, oa.entry.Op, title(oa.entry), c.lineOf(a.Rank, oa.entry), b.Rank, ob.entry.Op,
						title(ob.entry), c.lineOf(b.Rank, ob.entry)),
				}, true
			}
		}
	}
	return Verdict{}, false
}

// belongs reports whether a rank is known to be in the group of an unfinished collective. gloo's recorder does not report the members of
// its groups.
func (c *analysis) belongs(rank int, o open, rec recordings) bool {
	if _, called := rec.last[o.group][rank]; called || o.entry.Desc == "default_pg" || slices.Contains(rec.members[o.group], rank) {
		return true
	}
	return rec.members[o.group] == nil && c.job.World <= 2 && len(c.job.Ranks) == 2 // a group of one rank is never waited for
}

// title is the name of a group for people.
func title(e torchdump.Entry) string {
	if e.Desc != "" && e.Desc != "undefined" {
		return e.Desc
	}
	return "group " + e.Group
}

func (c *analysis) lineOf(rank int, e torchdump.Entry) string {
	if e.Where != "" {
		return e.Where
	}
	return c.at[rank].place()
}

// attendance is who has come to the oldest unfinished collective of a group, and with what.
type attendance struct {
	open    open
	here    []int                   // wait in it
	late    []int                   // have not come
	unsure  []int                   // have not come, and may not be in the group
	unseen  []Rank                  // of which nothing is known
	entries map[int]torchdump.Entry // of those that have come, those that are through with it included
}

// attend finds out who has come.
func (c *analysis) attend(key string, rec recordings) attendance {
	a := attendance{open: rec.oldest(key), entries: map[int]torchdump.Entry{}}
	first := a.open.entry.Seq
	for _, r := range c.job.Ranks {
		if r.Gone != "" || rec.members[key] != nil && !slices.Contains(rec.members[key], r.Rank) {
			continue
		}
		behind := rec.last[key][r.Rank].Seq < first
		switch {
		case r.Dump == nil && c.at[r.Rank].class != inProgram:
			a.unseen = append(a.unseen, r) // it may be in this collective
			continue
		case behind && c.belongs(r.Rank, a.open, rec):
			a.late = append(a.late, r.Rank)
			continue
		case behind:
			a.unsure = append(a.unsure, r.Rank)
			continue
		}
		e, found := numberOf(r.Dump, key, first)
		if !found {
			continue
		}
		a.entries[r.Rank] = e
		if o, waits := rec.opens[r.Rank]; waits && o.group == key && o.entry.Seq == first {
			a.here = append(a.here, r.Rank)
		}
	}
	return a
}

// by sorts those that have come by something of what they have called.
func (a attendance) by(kind func(torchdump.Entry) string) map[string][]int {
	kinds := map[string][]int{}
	for _, rank := range slices.Sorted(maps.Keys(a.entries)) {
		k := kind(a.entries[rank])
		kinds[k] = append(kinds[k], rank)
	}
	return kinds
}

// group judges one group: who has not come to the oldest unfinished collective, or came with another one.
func (c *analysis) group(key string, rec recordings) (Verdict, bool) {
	a := c.attend(key, rec)
	numbered := fmt.Sprintf("%s number %d of %s", a.open.entry.Op, a.open.entry.Seq, title(a.open.entry))
	if len(a.late) > 0 {
		return c.late(a.late, "not reached "+numbered, a.here), true
	}
	if v, found := c.differing(a); found {
		return v, true
	}
	if len(a.unsure) > 0 {
		return c.late(a.unsure, "not reached "+numbered+", which only members of its group have to reach", a.here), true
	}
	if v, found := c.rooted(); found {
		return v, true
	}
	if slices.ContainsFunc(a.unseen, func(r Rank) bool { return r.atWork() }) {
		return Verdict{}, false // it is on its way
	}
	if v, found := c.communicators(); found { // NCCL knows of ranks that were not seen
		return v, true
	}
	return c.entered(a, numbered, c.unseenOf(a.unseen, rec.members[key])), len(a.here) > 1
}

// differing: ranks have come to the same number of a group with different calls.
func (c *analysis) differing(a attendance) (Verdict, bool) {
	as := fmt.Sprintf(" as number %d of %s", a.open.entry.Seq, title(a.open.entry))
	if ops := a.by(func(e torchdump.Entry) string { return e.Op }); len(ops) > 1 {
		return c.differ(ops, func(n int) string { return a.entries[n].Op + " (" + c.lineOf(n, a.entries[n]) + ")" }, as), true
	}
	// others write sizes in their own way
	if uneven[a.open.entry.Op] || len(a.by(func(e torchdump.Entry) string { return e.Backend })) != 1 {
		return Verdict{}, false
	}
	if sizes := a.by(func(e torchdump.Entry) string { return e.Op + e.Sizes }); len(sizes) > 1 {
		return c.differ(sizes, func(n int) string { return a.entries[n].Op + " with " + a.entries[n].Sizes }, as), true
	}
	if types := a.by(func(e torchdump.Entry) string { return e.Types }); len(types) > 1 {
		return c.differ(types, func(n int) string {
			return a.entries[n].Op + " of type " +
				strings.Trim(a.entries[n].Types, `[]"`)
		}, as), true
	}
	return Verdict{}, false
}

// entered says that all that were seen are in the collective. unseen says of whom nothing is known.
func (c *analysis) entered(a attendance, numbered, unseen string) Verdict {
	if c.onlyGPU(a.here) {
		return Verdict{
			Still: true, Unseen: true,
			Sentence: fmt.Sprintf(
				"%s %s for their GPUs, in %s, and have entered %s%s: perhaps hung; the GPUs may still compute what comes before it.",
				name(a.here), verb(a.here, "wait"), c.at[a.here[0]].where(), numbered, unseen),
		}
	}
	if len(a.here) == 0 {
		return Verdict{}
	}
	same := ""
	if len(a.by(func(e torchdump.Entry) string { return e.Op + e.Sizes })) == 1 {
		same = " with the same sizes"
	}
	return Verdict{Sentence: fmt.Sprintf(
		"%s in %s%s, and none makes progress%s: the network between them is stuck, or one of them died after it had entered.",
		is(a.here), numbered, same, unseen)}
}

// unseenOf says which ranks of a group may not have entered what the others have: nothing is known of them. members are
// nil if all ranks are.
func (c *analysis) unseenOf(unread []Rank, members []int) string {
	ranks := slices.DeleteFunc(c.absent(), func(n int) bool { return members != nil && !slices.Contains(members, n) })
	for _, r := range unread {
		ranks = append(ranks, r.Rank)
	}
	if len(ranks) == 0 {
		return ""
	}
	slices.Sort(ranks)
	return "; of " + lower(name(ranks)) + " nothing is known"
}

// numberOf returns a collective of a group by its number, also one that is finished: NCCL can finish one that others have not entered.
func numberOf(d *torchdump.Dump, group string, seq int) (torchdump.Entry, bool) {
	if d == nil {
		return torchdump.Entry{}, false
	}
	for _, e := range d.Entries {
		if !e.P2P && e.Group == group && e.Seq == seq {
			return e, true
		}
	}
	return torchdump.Entry{}, false
}

// uneven are the collectives in which ranks may pass different sizes.
var uneven = map[string]bool{
	"gather": true, "scatter": true, "all_to_all": true, "all_to_all_single": true, "alltoall": true,
	"alltoall_base": true,
}
