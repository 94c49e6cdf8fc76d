// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package verdict says in one sentence why a job hangs, with the evidence. It is pure: it takes what was observed of the
// ranks and returns sentences.
package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Verdict is the answer.
type Verdict struct {
	// Sentence says why the job stands still, or that it does not.
	Sentence string
	// Hung says that it stands still.
	Hung bool
	// Still says that nothing has moved, which does not prove that it hangs. Unseen says that GPUs may be at work.
	Still, Unseen bool
	// Culprits are the ranks that the others wait for.
	Culprits []int
	// Proof are the facts behind the sentence, a line each.
	Proof []string
	// Moving are the ranks that do something of their own and got on with it between two readings: others may only wait for that.
	Moving []int
	// Places say where each rank is: the part of the proof that stays the same while nothing moves.
	Places []string
	// Activities say what each rank does that could be read.
	Activities []Activity
}

// Judge looks at a job.
func Judge(j Job) Verdict {
	c := convene(j)
	v := c.tempered(c.members().judge())
	v.Places, v.Activities = slices.Concat(c.places(), c.steps()), c.activities()
	v.Moving = c.ranks(func(r Rank, p position) bool { return r.Moved && !p.waits() || working(r) != nil })
	v.Proof = slices.Concat(v.Places, c.waits(), c.leftKeys(), j.NCCL[:min(len(j.NCCL), maxNCCL)], c.logged(), j.Notes)
	return v
}

// maxNCCL bounds the lines of NCCL in the proof.
const maxNCCL = 16

// withoutChildren leaves out a second process of a rank that takes no part: a child that has lost its parent, for
// instance. Where both take part, both stay.
func withoutChildren(ranks []Rank) []Rank {
	var out []Rank
	for _, r := range ranks {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Rank != r.Rank || locate(out[last]).waits() && locate(r).waits():
			out = append(out, r)
		case locate(r).waits() && !locate(out[last]).waits():
			out[last] = r
		}
	}
	return out
}

// analysis holds a job and where its ranks are.
type analysis struct {
	job Job
	at  map[int]position
}

// convene finds out where the ranks of a job are.
func convene(j Job) *analysis {
	slices.SortFunc(j.Ranks, func(a, b Rank) int { return a.Rank - b.Rank })
	j.Ranks = withoutChildren(j.Ranks)
	c := &analysis{job: j, at: map[int]position{}}
	for i := range j.Ranks {
		r := &j.Ranks[i]
		if sameAddress(r.Object, j.Store) || r.Gateway != "" && sameAddress(r.Object, r.Gateway) {
			r.Object = theStore
		}
		c.at[r.Rank] = locate(*r)
		c.held(r)
		c.polled(r)
		r.Moved = r.Moved && !c.at[r.Rank].thread // what its main thread does meanwhile does not count
	}
	if len(c.waiting()) == 0 {
		c.otherThreads()
	}
	return c
}

// members returns the analysis of those that are in the group, where members change: dead ones were replaced, and spares wait.
func (c *analysis) members() *analysis {
	if !slices.ContainsFunc(c.job.Ranks, func(r Rank) bool { return r.Member }) {
		return c
	}
	in := *c
	in.job.World = 0 // it counts spares
	in.job.Ranks = slices.DeleteFunc(slices.Clone(c.job.Ranks), func(r Rank) bool { return r.Gone != "" || c.at[r.Rank].spare })
	if len(in.job.Ranks) == 0 {
		return c
	}
	return &in
}

// otherThreads: no main thread waits for other ranks, but those may only watch over threads that do the work.
func (c *analysis) otherThreads() {
	for i := range c.job.Ranks {
		r := &c.job.Ranks[i]
		if r.Main == nil || r.atWork() {
			continue
		}
		if p, found := inThread(*r, c.at[r.Rank]); found {
			c.at[r.Rank], r.Wakes = p, 0 // that the main thread wakes, to look at the others again, gets nothing on
		}
	}
}

// fromStore judges a job of which only the store was seen.
func (c *analysis) fromStore() Verdict {
	known := map[int]bool{}
	for _, w := range c.job.Waits {
		if w.Rank >= 0 {
			known[w.Rank] = true
		}
	}
	if v, found := c.keys(slices.Sorted(maps.Keys(known))); found {
		v.Hung = true
		return v
	}
	if n := len(c.job.Waits); n > 0 {
		return Verdict{Sentence: fmt.Sprintf("No rank of this job was found, but %s in its store, the oldest for the key %s%s.",
			map[bool]string{true: "1 request waits", false: strconv.Itoa(n) + " requests wait"}[n == 1], c.job.Waits[0].Key,
			since(c.job.Waits[0].Age))}
	}
	return Verdict{Sentence: "No rank of this job was found, and no client waits in its store."}
}

// ranks returns the ranks whose position satisfies want.
func (c *analysis) ranks(want func(Rank, position) bool) []int {
	var all []int
	for _, r := range c.job.Ranks {
		if r.Gone == "" && want(r, c.at[r.Rank]) {
			all = append(all, r.Rank)
		}
	}
	return all
}

func (c *analysis) rank(n int) *Rank {
	for i := range c.job.Ranks {
		if c.job.Ranks[i].Rank == n {
			return &c.job.Ranks[i]
		}
	}
	return nil
}

// waiting returns the ranks that stand still in a call that waits for others.
func (c *analysis) waiting() []int {
	return c.ranks(func(r Rank, p position) bool { return p.waits() && (!r.Moved || p.class <= inNewGroup) })
}

// still returns the ranks that stand still in a class of calls.
func (c *analysis) still(in ...class) []int {
	return c.ranks(func(r Rank, p position) bool { return slices.Contains(in, p.class) && !r.Moved })
}

// gone: a rank has ended while others wait.
func (c *analysis) gone() (Verdict, bool) {
	waiting := c.waiting()
	if len(waiting) == 0 {
		return Verdict{}, false
	}
	for _, r := range c.job.Ranks {
		if r.Gone != "" {
			return Verdict{
				Culprits: []int{r.Rank},
				Sentence: fmt.Sprintf("Rank %d %s; %s.", r.Rank, r.Gone, waits(waiting)),
			}, true
		}
	}
	return Verdict{}, false
}

// lacking: all ranks run on this host, and some do not run.
func (c *analysis) lacking() (Verdict, bool) {
	waiting, absent := c.waiting(), c.absent()
	if !c.job.Local || len(waiting) == 0 || len(absent) == 0 {
		return Verdict{}, false
	}
	found := "only " + lower(name(c.all())) + " was found"
	if len(c.all()) > 1 {
		found = "only " + lower(name(c.all())) + " were found"
	}
	return Verdict{
		Culprits: absent,
		Sentence: fmt.Sprintf("%s not running: of a world of %d %s; %s%s.", is(absent), c.job.World, found, c.waitIn(waiting),
			since(c.waited(waiting))),
	}, true
}

// absent returns the ranks of which no process was found.
func (c *analysis) absent() []int {
	var all []int
	for n := range min(c.job.World, 1<<16) {
		if c.rank(n) == nil {
			all = append(all, n)
		}
	}
	return all
}

func (c *analysis) all() []int { return c.ranks(func(Rank, position) bool { return true }) }

// twice: two processes are the same rank, and both take part.
func (c *analysis) twice() (Verdict, bool) {
	for i := 1; i < len(c.job.Ranks); i++ { // they are sorted
		a, b := c.job.Ranks[i-1], c.job.Ranks[i]
		if a.Rank != b.Rank || a.Gone != "" || b.Gone != "" || !locate(a).waits() || !locate(b).waits() {
			continue
		}
		return Verdict{
			Culprits: []int{a.Rank},
			Sentence: fmt.Sprintf(
				"Rank %d was started twice, as the processes %d and %d: give each process its own RANK, from 0 to %d.", a.Rank,
				a.PID, b.PID, max(c.job.World, 1)-1),
		}, true
	}
	return Verdict{}, false
}

// starting: some ranks set up a group that others have not come to.
func (c *analysis) starting() (Verdict, bool) {
	for _, step := range []class{inInit, inNewGroup} {
		here := c.ranks(func(_ Rank, p position) bool { return p.class == step }) // it asks the store again and again, and so moves
		if len(here) == 0 {
			continue
		}
		late := c.ranks(func(_ Rank, p position) bool { return p.class != step && p.class <= inNewGroup })
		call := c.at[here[0]].op
		if len(late) > 0 {
			return c.late(late, "not called "+call, here), true
		}
		if past := c.still(inMessage, inCollective); step == inNewGroup && len(past) > 0 {
			return Verdict{
				Culprits: past,
				Sentence: fmt.Sprintf(
					"%s in %s where %s %s %s (%s)%s: every rank must call new_group for every group, with the same ranks and in the "+
						"same order, also for groups that it is not in.",
					is(past), c.at[past[0]].where(), lower(name(here)), verb(here, "call"), call, c.lines(here),
					since(c.waited(past))),
			}, true
		}
		if v, found := c.keys(here); found {
			come := len(v.Culprits) > 0 && !slices.ContainsFunc(v.Culprits, func(n int) bool { return !slices.Contains(here, n) })
			if come && slices.ContainsFunc(v.Culprits, func(n int) bool { return c.rank(n).atWork() }) {
				return Verdict{}, false // it is about to set its key
			}
			if step == inInit && come {
				return Verdict{
					Culprits: v.Culprits,
					Sentence: fmt.Sprintf(
						"%s in %s (%s)%s, but none says that it is %s: the program probably gives two processes the same rank.",
						is(here), call, c.lines(here), since(c.waited(here)), lower(name(v.Culprits))),
				}, true
			}
			if step == inNewGroup && come { // to another group
				return Verdict{
					Culprits: here,
					Sentence: fmt.Sprintf(
						"%s in %s (%s) and wait for each other%s: every rank must create the same groups in the same order.",
						is(here), call, c.lines(here), since(c.waited(here))),
				}, true
			}
			return v, true
		}
		if v, found := c.tooMany(here); found && step == inInit {
			return v, true
		}
		if absent := c.absent(); len(absent) > 0 || len(here) == 1 {
			text := ""
			if len(absent) > 0 {
				text = fmt.Sprintf("; %s of the world of %d %s not run on this host", lower(name(absent)), c.job.World,
					map[bool]string{true: "does", false: "do"}[len(absent) == 1])
			}
			return Verdict{Sentence: fmt.Sprintf("%s in %s (%s) and %s for others%s%s.", is(here), call, c.at[here[0]].line,
				verb(here, "wait"), since(c.rank(here[0]).Idle), text)}, true
		}
		lines, hint := c.lines(here), ""
		switch {
		case step == inNewGroup && lines != c.at[here[0]].line:
			hint = ": every rank must create the same groups in the same order"
		case step == inInit && c.job.OldKeys:
			hint = ": the store still has keys from an earlier attempt, and a rank that started early has probably read the address " +
				"of a process that has exited; TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun start each attempt with an empty store"
		}
		return Verdict{Culprits: here, Sentence: fmt.Sprintf("%s in %s (%s) and wait for each other%s%s.", is(here), call, lines,
			since(c.rank(here[0]).Idle), hint)}, true
	}
	return Verdict{}, false
}

// late says that ranks have not done what others wait for.
func (c *analysis) late(late []int, what string, waiting []int) Verdict {
	idle := func(n int) bool { return c.at[n].class == unknown && c.rank(n).Main != nil } // no Python code
	if some := slices.DeleteFunc(slices.Clone(late), idle); len(some) > 0 && len(some) < len(late) {
		rest := slices.DeleteFunc(slices.Clone(late), func(n int) bool { return !idle(n) })
		v := c.late(some, what, waiting)
		how := "starting or exiting"
		if !slices.ContainsFunc(rest, func(n int) bool { return !c.rank(n).Ending }) {
			how = "exiting"
		}
		v.Sentence = fmt.Sprintf("%s; %s %s.", strings.TrimSuffix(v.Sentence, "."), lower(is(rest)), how)
		return v
	}
	places := map[string]bool{}
	for _, n := range late {
		places[c.at[n].where()] = true
	}
	text := "; they are in " + strings.Join(sorted(places), ", ") + c.alsoSays(late)
	if len(late) == 1 || len(places) == 1 {
		text = "; " + pronoun(late) + " in " + c.at[late[0]].doing() + c.spent(late[0]) + c.alsoSays(late) + c.because(late[0])
	}
	if r := c.rank(late[0]); c.at[late[0]].op == "" && c.at[late[0]].own == "" {
		text = ""
		if said := c.says(late); said != "" {
			text = "; " + pronoun(late) + " " + said
		}
		if r.Main != nil && len(late) == 1 {
			text = "; the process is not running Python code (starting or exiting)" + c.because(late[0])
			if r.Ending {
				text = "; its program has ended, but its process has not exited" + c.because(late[0])
			}
		}
	}
	return Verdict{Culprits: late, Sentence: fmt.Sprintf("%s %s %s%s; %s%s.", name(late), has(late), what, text, waits(waiting),
		since(c.waited(waiting)))}
}

// others says who waits besides.
func (c *analysis) others(but ...int) string {
	rest := slices.DeleteFunc(c.waiting(), func(n int) bool { return slices.Contains(but, n) })
	if len(rest) == 0 {
		return ""
	}
	return "; " + waits(rest) + since(c.waited(rest))
}

// places lists what each rank does, those that do the same in one line.
func (c *analysis) places() []string {
	lines := map[string][]int{}
	for _, r := range c.job.Ranks {
		text := c.at[r.Rank].where()
		if r.polls != nil {
			text = c.at[r.Rank].own + ", " + c.at[r.Rank].how // its line is another one each time
		}
		switch {
		case r.Gone != "":
			text = r.Gone
		case r.Main == nil && r.Trouble != "":
			text = r.Trouble
		case r.Main == nil:
			text = "no Python stack"
		}
		if r.Gone == "" && r.Section != "" {
			text += ", section " + strconv.Quote(r.Section)
		}
		if r.Gone == "" && r.Main != nil && r.polls == nil {
			text += ", state " + r.Main.State
			if r.Main.Kernel != "" {
				text += " in " + r.Main.Kernel
			}
			if r.Moved {
				text += ", moving"
			}
			if tensor := c.at[r.Rank].tensor; tensor != "" {
				text += ", " + tensor
			}
			if !r.Moved && r.Line != "" && c.at[r.Rank].class != unknown {
				text += ": " + r.Line
			}
		}
		lines[text] = append(lines[text], r.Rank)
	}
	var out []string
	for text, ranks := range lines {
		if len(ranks) > 1 {
			text = plural(text)
		}
		out = append(out, lower(name(ranks))+": "+text)
	}
	slices.Sort(out)
	return slices.Clip(out)
}

// plural says of several ranks how they ended.
func plural(text string) string {
	for one, several := range map[string]string{"has ": "have ", "was ": "were "} {
		if rest, ok := strings.CutPrefix(text, one); ok {
			return several + rest
		}
	}
	return text
}
