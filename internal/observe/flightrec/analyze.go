// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Finding is the result of an analysis of a group.
type Finding string

// The findings, the worst first.
const (
	// OutOfStep: ranks called different operations, operators, types, sizes or roots under one sequence number.
	OutOfStep Finding = "out_of_step"
	// Deadlock: ranks wait for each other in different groups, or each for a message of the other.
	deadlock Finding = "deadlock"
	// MissingRank: a rank that others wait for has no dump.
	MissingRank Finding = "missing"
	// LateRank: a rank never entered a collective that others wait in.
	LateRank Finding = "late"
	// StuckMessage: a message has a sender or a receiver only.
	StuckMessage Finding = "stuck_message"
	// Unfinished: all ranks entered a collective, and it is not complete on all of them.
	Unfinished Finding = "unfinished"
	// Behind: a rank has posted less than others, who do not wait for it.
	Behind Finding = "behind"
	// NoDump: no rank waits, but a rank has no dump.
	NoDump Finding = "no_dump"
	// InStep: nothing is wrong.
	InStep Finding = "in_step"
)

var severity = map[Finding]int{
	OutOfStep: 9, deadlock: 8, MissingRank: 7, LateRank: 7, StuckMessage: 5, Unfinished: 4, Behind: 3, NoDump: 2, InStep: 0,
}

// Diagnosis is the result of the dumps of all ranks together. Ranks are global ranks. Its JSON form is cohort.trace.v1.
//
//nolint:recvcheck // its JSON form must be had of a value too
type Diagnosis struct {
	Finding Finding
	// Sentence names, in plain English, the ranks that are late, missing or out of step.
	Sentence string
	// Ranks are the ranks to look at.
	Ranks  []int
	Groups []groupDiagnosis
	// Workers are the RPC workers, the one that waits longest first.
	Workers []workerView
	// Notes are about the dumps themselves: doubles, old ones.
	Notes []string
}

// groupDiagnosis is the verdict on one group. Ranks are global ranks.
type groupDiagnosis struct {
	Group       string
	Description string
	Size        int
	Transport   string
	Finding     Finding
	Sentence    string
	Ranks       []int
	// Missing are the members without a dump.
	Missing []int
	Members []rankView

	team  *team
	since time.Duration // how long the longest wait has lasted
}

// rankView is one rank of a group as its dump shows it.
type rankView struct {
	Rank      int // global
	GroupRank int // in the group
	Host      string
	PID       int
	Status
	// Doing are the operations that are not complete, oldest first; at most a few.
	Doing  []pending
	Failed string
}

// pending is an operation that is not complete.
type pending struct {
	Entry
	// Text describes the operation, with global ranks.
	Text string
	// Wait is its age when the dump was taken, or when it failed.
	Wait time.Duration
}

// maxDoing bounds the operations that a rankView lists.
const maxDoing = 8

// view is one rank's dump of one group.
type view struct {
	Group
	global int
	taken  time.Time
	calls  map[uint64]*Entry // collectives by sequence number
	open   []*Entry          // not complete, oldest first
}

// team is a group with the views of its members.
type team struct {
	About
	views   []*view // by group rank, nil without a dump
	present []*view
	missing []int // group ranks
}

// Analyze merges the dumps of the ranks of a job and names the ranks that are late, missing or out of step.
//
// Times are only compared with times of the same dump, so the clocks of the machines may differ.
func Analyze(dumps []Dump) Diagnosis {
	teams, notes := assemble(dumps)
	v := Diagnosis{Finding: InStep, Notes: notes, Ranks: []int{}, Groups: make([]groupDiagnosis, 0, len(teams))}
	for _, t := range teams {
		v.Groups = append(v.Groups, t.judge())
	}
	v.Workers = workers(dumps)
	if len(v.Groups) == 0 && len(v.Workers) == 0 {
		v.Finding, v.Sentence = NoDump, "the dumps hold no group"
		return v
	}
	if len(v.Groups) > 0 {
		v.judgeGroups()
	}
	v.judgeCalls()
	return v
}

// judgeGroups takes the verdict on the group that explains most.
func (v *Diagnosis) judgeGroups() {
	weights := explainWaits(v.Groups)
	worst := 0
	for i := range v.Groups {
		g, w := &v.Groups[i], &v.Groups[worst]
		if weights[i] > weights[worst] || (weights[i] == weights[worst] && g.since > w.since) {
			worst = i
		}
	}
	g := v.Groups[worst]
	v.Finding, v.Ranks, v.Sentence = g.Finding, g.Ranks, g.Sentence
	switch {
	case len(v.Groups) == 1:
	case g.Finding == InStep:
		v.Sentence = fmt.Sprintf("all %d groups are in step", len(v.Groups))
	default:
		v.Sentence = "group " + g.Group + ": " + g.Sentence
	}
}

// assemble sorts the groups of all dumps by what they belong to. Of several dumps of a rank the latest counts.
func assemble(dumps []Dump) (teams []*team, notes []string) {
	byKey := map[string]*team{}
	room := maxRanks
	for _, d := range dumps {
		for _, g := range d.Groups {
			if g.Size < 1 || g.Rank < 0 || g.Rank >= g.Size {
				notes = append(notes, fmt.Sprintf("group %s is left out: rank %d of %d", g.Group, g.Rank, g.Size))
				continue
			}
			key := fmt.Sprint(g.Group, "\x00", g.Size, g.GlobalRanks)
			t := byKey[key]
			if t == nil {
				if g.Size > room {
					notes = append(notes, fmt.Sprintf("group %s is left out: the groups have more than %d ranks in all", g.Group, maxRanks))
					continue
				}
				room -= g.Size
				t = &team{About: g.About, views: make([]*view, g.Size)}
				byKey[key] = t
				teams = append(teams, t)
			}
			v := newView(g, d.Time)
			old := t.views[g.Rank]
			if old != nil {
				note := fmt.Sprintf("group %s: several dumps of rank %d, the latest counts", g.Group, v.global)
				if old.PID != v.PID || old.Host != v.Host {
					note += fmt.Sprintf("; they are of different processes (%s and %s): are these dumps of one run?",
						old.process(), v.process())
				}
				notes = append(notes, note)
			}
			if old == nil || old.taken.Before(v.taken) {
				t.views[g.Rank] = v
			}
		}
	}
	for _, t := range teams {
		for r, v := range t.views {
			if v == nil {
				t.missing = append(t.missing, r)
			} else {
				t.present = append(t.present, v)
			}
		}
	}
	slices.SortStableFunc(teams, func(a, b *team) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Group, b.Group))
	})
	return teams, notes
}

// maxRanks bounds the sizes of all groups together: they are only claims of the dumps.
const maxRanks = 1 << 20

func newView(g Group, taken time.Time) *view {
	v := &view{Group: g, taken: taken, calls: make(map[uint64]*Entry, len(g.Entries))}
	v.global = v.globalOf(g.Rank)
	for i := range v.Entries {
		e := &v.Entries[i]
		if !e.P2P {
			v.calls[e.Seq] = e
		}
		if e.State != Completed {
			v.open = append(v.open, e)
		}
	}
	return v
}

// globalOf translates a group rank.
func (a *About) globalOf(rank int) int {
	if len(a.GlobalRanks) == a.Size && rank >= 0 && rank < a.Size {
		return a.GlobalRanks[rank]
	}
	return rank
}

func (a *About) globals(ranks []int) []int {
	all := make([]int, len(ranks))
	for i, r := range ranks {
		all[i] = a.globalOf(r)
	}
	return all
}

func (a *About) process() string {
	if a.PID == 0 {
		return "host " + a.Host
	}
	return fmt.Sprintf("process %d on %s", a.PID, a.Host)
}

// age is how long an operation had lasted when the dump was taken, or when it failed.
func (v *view) age(e *Entry) time.Duration {
	until := v.taken
	if !e.Ended.IsZero() {
		until = e.Ended
	}
	return max(0, until.Sub(e.Posted))
}

// openCall is the first collective that is not complete, or nil.
func (v *view) openCall() *Entry {
	for _, e := range v.open {
		if !e.P2P {
			return e
		}
	}
	return nil
}

// judge finds out what is wrong with one group.
func (t *team) judge() groupDiagnosis {
	g := groupDiagnosis{
		Group: t.Group, Description: t.Description, Size: t.Size, Transport: t.Transport, Missing: t.globals(t.missing), team: t,
		Ranks: []int{},
	}
	for _, v := range t.present {
		view := rankView{Rank: v.global, GroupRank: v.Rank, Host: v.Host, PID: v.PID, Status: v.Status, Failed: v.Failed}
		for _, e := range v.open[:min(len(v.open), maxDoing)] {
			view.Doing = append(view.Doing, pending{*e, e.text(&t.About), v.age(e)})
			g.since = max(g.since, v.age(e))
		}
		g.Members = append(g.Members, view)
	}
	for _, look := range []func(*team, *groupDiagnosis) bool{
		(*team).differences, (*team).absence, (*team).messages, (*team).progress,
	} {
		if look(t, &g) {
			break
		}
	}
	slices.Sort(g.Ranks)
	return g
}

// explainWaits looks for ranks that are late in one group because they wait in another. It returns the weight of each
// group's verdict: the cause weighs more than its consequence.
func explainWaits(groups []groupDiagnosis) []int {
	weights := make([]int, len(groups))
	waits := make([]map[int]*Entry, len(groups)) // by group: global rank -> what it waits in
	for i, g := range groups {
		weights[i] = 2 * severity[g.Finding]
		waits[i] = map[int]*Entry{}
		for _, v := range g.team.present {
			if len(v.open) > 0 {
				waits[i][v.global] = v.open[0]
			}
		}
	}
	blames := make([]map[int]bool, len(groups)) // group -> groups in which its late ranks wait
	for i := range groups {
		g := &groups[i]
		blames[i] = map[int]bool{}
		if g.Finding != LateRank {
			continue
		}
		for _, r := range g.Ranks {
			for j := range groups {
				if e := waits[j][r]; j != i && e != nil {
					g.Sentence += fmt.Sprintf("; rank %d waits in %s of group %s", r, e.label(), groups[j].Group)
					blames[i][j] = true
					break
				}
			}
		}
		if len(blames[i]) > 0 {
			weights[i]--
		}
	}
	for i := range groups {
		for j := range blames[i] {
			if i < j && blames[j][i] {
				a, b := &groups[i], &groups[j]
				a.Finding, b.Finding = deadlock, deadlock
				a.Ranks = union(a.Ranks, b.Ranks)
				b.Ranks = a.Ranks
				text := fmt.Sprintf(
					"deadlock between group %s and group %s: %s; operations of groups that share ranks must be posted in one order",
					a.Group, b.Group, a.Sentence)
				a.Sentence, b.Sentence = text, text
				weights[i], weights[j] = 2*severity[deadlock], 2*severity[deadlock]
			}
		}
	}
	return weights
}

func union(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
