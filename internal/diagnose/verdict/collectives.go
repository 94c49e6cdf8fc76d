// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// missing: some ranks are in a collective and others are not.
func (c *analysis) missing() (Verdict, bool) {
	here := c.still(inCollective)
	late := c.ranks(func(r Rank, p position) bool { return r.Main != nil && !p.meets() })
	if len(here) > 0 && len(late) > 0 {
		if v, found := c.oneSided(here, late); found {
			return v, true
		}
		if v, found := c.betweenLate(late); found {
			return v, true
		}
		what := "not reached " + c.at[here[0]].where()
		if ofSome(c.at[here[0]].op, c.rank(here[0]).Line) && (len(late) > 1 || c.job.World > 2) {
			what += ", which only members of its group have to reach"
		}
		return c.late(late, what, here), true
	}
	work := c.still(inWork)
	switch {
	case len(work) == 0:
		return Verdict{}, false
	case len(late) == 0 && len(here) > 0 && c.at[work[0]].op == "backward":
		return Verdict{
			Culprits: here,
			Sentence: fmt.Sprintf("%s %s %s where %s in %s%s, which in DDP needs all ranks: did %s get fewer batches?",
				name(here), verb(here, "call"), c.at[here[0]].where(), lower(is(work)), c.at[work[0]].where(),
				since(c.waited(work)), lower(name(here))),
		}, true
	case len(late) == 0 && len(here) > 0:
		return Verdict{
			Culprits: work,
			Sentence: fmt.Sprintf("%s %s for an operation that was started earlier, in %s (%s), where %s %s %s%s.",
				name(work), verb(work, "wait"), cmp.Or(c.at[work[0]].op, c.at[work[0]].own), c.lines(work), lower(name(here)),
				verb(here, "call"), c.at[here[0]].where(), since(c.waited(work))),
		}, true
	case len(late) == 0:
		return Verdict{}, false
	case c.at[work[0]].op != "":
		what := "not reached " + c.at[work[0]].where()
		switch {
		case !slices.ContainsFunc(late, func(n int) bool { return !withinBackward(c.rank(n).Main) }):
			what = "not finished " + c.at[work[0]].where()
		case c.at[work[0]].op == "backward": // DDP sums up no gradients of parameters that a rank has not used
			what += ", or " + has(late) + " left it without gradients of all parameters"
		}
		return c.late(late, what, work), true
	}
	return c.late(late, "not started the operation that is waited for in "+c.at[work[0]].where(), work), true
}

// betweenLate: all that have not come wait for messages of each other, and one of these does not find its receiver.
func (c *analysis) betweenLate(late []int) (Verdict, bool) {
	if slices.ContainsFunc(late, func(n int) bool { return c.at[n].class != inMessage || c.rank(n).Moved }) {
		return Verdict{}, false
	}
	v, found := c.unmatched()
	if text, whole := strings.CutSuffix(v.Sentence, "."); whole {
		v.Sentence = text + c.others(late...) + "."
	}
	return v, found
}

// leaves are the collectives from which a rank may be gone before all others have come: only their root waits for all, or all for
// their root.
var leaves = map[string]bool{
	"gather": true, "gather_single": true, "gather_into_tensor": true, "gather_object": true, "reduce": true, "broadcast": true,
	"broadcast_object_list": true, "scatter": true, "scatter_object_list": true,
	modelForward: true,
}

// oneSided: several ranks are not in a collective that some of them may have left already.
func (c *analysis) oneSided(here, late []int) (Verdict, bool) {
	late = slices.DeleteFunc(slices.Clone(late), func(n int) bool { return c.at[n].class == unknown })
	if len(late) < 2 || !leaves[c.at[here[0]].op] {
		return Verdict{}, false
	}
	return Verdict{Culprits: late, Sentence: fmt.Sprintf("Not all of %s have reached %s: %s; %s%s.",
		lower(name(late)), c.at[here[0]].where(), strings.Join(c.grouped(late, position.doing), "; "), waits(here),
		since(c.waited(here)))}, true
}

// mismatch: the ranks are in different collectives.
func (c *analysis) mismatch() (Verdict, bool) {
	ops := map[string][]int{}
	for _, n := range c.still(inCollective) {
		ops[c.at[n].op] = append(ops[c.at[n].op], n)
	}
	if len(ops) < 2 {
		return Verdict{}, false
	}
	if v, found := c.leftOut(); found {
		return v, true
	}
	hint := ""
	if users := ops[modelForward]; users != nil {
		rest := slices.DeleteFunc(c.still(inCollective), func(n int) bool { return slices.Contains(users, n) })
		hint = fmt.Sprintf("; if %s did not get fewer batches, let %s use the model's .module, which needs no other rank",
			lower(name(rest)), lower(name(users)))
	}
	return c.differ(ops, func(n int) string {
		if p := c.at[n]; p.via == "" && ofSome(p.op, c.rank(n).Line) {
			group, _ := groupOf(p.op, c.rank(n).Line)
			return fmt.Sprintf("%s of the group %s (%s)", p.op, group, p.line)
		}
		return c.at[n].where()
	}, since(c.waited(c.still(inCollective)))+hint), true
}

// leftOut: some ranks are in a collective of a group of some, and all others in one of all ranks. Who is in the group is not known from
// stacks, so that the few may be right and one of the many wrong.
func (c *analysis) leftOut() (Verdict, bool) {
	groups := map[string][]int{}
	for _, n := range c.still(inCollective) {
		p := c.at[n]
		group, known := groupOf(p.op, c.rank(n).Line)
		if !known || p.via != "" {
			return Verdict{}, false
		}
		groups[group] = append(groups[group], n)
	}
	all := groups[defaultGroup]
	delete(groups, defaultGroup)
	if len(all) == 0 || len(groups) != 1 {
		return Verdict{}, false
	}
	group := slices.Collect(maps.Keys(groups))[0]
	some := groups[group]
	which := "one of these is in " + group + " too"
	if len(all) == 1 {
		which = fmt.Sprintf("rank %d is in %s too", all[0], group)
	}
	return Verdict{Culprits: all, Sentence: fmt.Sprintf(
		"%s %s %s of the group %s (%s), which only its members call, and %s: %s, and has left that call out or makes it later.",
		name(some), verb(some, "call"), c.at[some[0]].op, group, c.lines(some),
		strings.Join(c.grouped(all, position.where), "; "), which)}, true
}

// modelForward is a collective that its callers may not take for one: it makes the buffers of all ranks equal.
const modelForward = "DistributedDataParallel.forward"

// rooted: ranks are in the same collective and name different ranks as its source or its destination. Others may have left it.
func (c *analysis) rooted() (Verdict, bool) {
	here := c.still(inCollective)
	roots := map[string]map[string][]int{} // by operation and root
	for _, n := range here {
		p := c.at[n]
		if p.peer < 0 {
			continue
		}
		if roots[p.op] == nil {
			roots[p.op] = map[string][]int{}
		}
		root := p.side + "=" + strconv.Itoa(p.peer)
		roots[p.op][root] = append(roots[p.op][root], n)
	}
	for _, op := range slices.Sorted(maps.Keys(roots)) {
		if len(roots[op]) < 2 {
			continue
		}
		suffix := since(c.waited(here))
		if rest := slices.DeleteFunc(slices.Clone(here), func(n int) bool { return c.at[n].op == op && c.at[n].peer >= 0 }); len(rest) > 0 {
			suffix += "; " + strings.Join(c.grouped(rest, position.where), "; ")
		}
		return c.differ(roots[op], func(n int) string {
			return fmt.Sprintf("%s with %s=%d (%s)", c.at[n].op, c.at[n].side, c.at[n].peer, c.at[n].line)
		}, suffix), true
	}
	return Verdict{}, false
}

// differ names the minority. Without a minority it cannot be told which is right, and all are named.
func (c *analysis) differ(kinds map[string][]int, say func(int) string, suffix string) Verdict {
	odd, rule := minority(kinds)
	if len(odd) == len(rule) {
		groups := slices.SortedFunc(maps.Values(kinds), func(a, b []int) int { return a[0] - b[0] })
		var parts []string
		for _, ranks := range groups {
			parts = append(parts, fmt.Sprintf("%s %s %s", lower(name(ranks)), verb(ranks, "call"), say(ranks[0])))
		}
		all := slices.Sorted(slices.Values(slices.Concat(groups...)))
		return Verdict{Culprits: all, Sentence: upper(strings.Join(parts, ", ")) + suffix + "."}
	}
	return Verdict{
		Culprits: odd,
		Sentence: fmt.Sprintf("%s %s %s where %s %s %s%s.", name(odd), verb(odd, "call"), say(odd[0]), lower(name(rule)),
			verb(rule, "call"), say(rule[0]), suffix),
	}
}

// same: all ranks are in the same collective.
func (c *analysis) same() (Verdict, bool) {
	here := c.still(inCollective, inWork)
	if len(here) == 0 || len(here) < len(c.ranks(func(_ Rank, p position) bool { return p.class == inCollective })) {
		return Verdict{}, false
	}
	p := c.at[here[0]]
	if p.op == "" {
		p.op = p.own
	}
	if len(here) == 1 && c.job.World <= 1 {
		return Verdict{Sentence: fmt.Sprintf("Rank %d is in %s (%s) and is the only rank that was found.", here[0], p.op, p.line)}, true
	}
	if v, found := c.apart(here); found {
		return v, true
	}
	if v, found := c.shapes(here); found {
		return v, true
	}
	unseen, sizes := "", ", or their tensors differ in size"
	if slices.ContainsFunc(here, func(n int) bool { return c.at[n].class == inWork && c.at[n].op == "" }) {
		sizes += ", or they wait for sends or receives that have no matching partner"
	}
	if p.op == "barrier" || !slices.ContainsFunc(here, func(n int) bool { return c.at[n].tensor == "" }) {
		sizes = "" // there are none, or they were compared
	}
	if absent := c.absent(); len(absent) > 0 {
		unseen = fmt.Sprintf("; %s of the world of %d %s not seen", lower(name(absent)), c.job.World, was(absent))
	}
	return Verdict{Sentence: fmt.Sprintf(
		"%s in %s (%s)%s and none makes progress: the network between them is stuck%s, or they are in different groups, or one is a "+
			"call ahead; flight recorder dumps would tell%s.",
		is(here), p.op, c.lines(here), since(c.rank(here[0]).Idle), sizes, unseen)}, true
}

// apart: the ranks wait in calls that look alike, and the text of the program tells how they differ.
func (c *analysis) apart(here []int) (Verdict, bool) {
	if v, found := c.message(here); found {
		return v, true
	}
	groups := map[string][]int{}
	for _, n := range here {
		group, known := groupOf(c.at[n].op, c.rank(n).Line)
		if !known || c.at[n].class != inCollective {
			return Verdict{}, false
		}
		groups[group] = append(groups[group], n)
	}
	if len(groups) < 2 {
		return Verdict{}, false
	}
	var parts []string
	for _, group := range slices.SortedFunc(maps.Keys(groups), func(a, b string) int { return groups[a][0] - groups[b][0] }) {
		ranks := groups[group]
		parts = append(parts, fmt.Sprintf("%s of %s (%s)", lower(name(ranks)), group, c.lines(ranks)))
	}
	return Verdict{
		Culprits: here,
		Sentence: fmt.Sprintf(
			"%s in %s of groups with different names%s: %s; every rank must call the collectives of all its groups in the same order.",
			is(here), c.at[here[0]].op, since(c.waited(here)), strings.Join(parts, ", ")),
	}, true
}

// message: one of the ranks waits for a message that it has started to send or to take in the same line, and others for something
// else. Whether they have sent or will take one cannot be seen.
func (c *analysis) message(here []int) (Verdict, bool) {
	started := func(n int) string {
		if c.at[n].class != inWork {
			return ""
		}
		return messageWait.FindString(c.rank(n).Line)
	}
	i := slices.IndexFunc(here, func(n int) bool { return started(n) != "" })
	rest := slices.DeleteFunc(slices.Clone(here), func(n int) bool { return started(n) != "" })
	switch {
	case i < 0:
		return Verdict{}, false
	case len(rest) == 0:
		return Verdict{Culprits: here, Sentence: fmt.Sprintf("%s %s for sends or receives that have no matching partner (%s)%s.",
			name(here), verb(here, "wait"), c.lines(here), since(c.waited(here)))}, true
	}
	n, what := here[i], "a message, and none has arrived"
	switch started(n) {
	case "isend":
		what = "its message to be received, and no rank has received it"
	case "batch_isend_irecv":
		what = "messages, and not all of them have been sent or received"
	}
	at := func(n int) string {
		if text := c.rank(n).Line; text != "" {
			return c.at[n].line + ", " + text
		}
		return c.at[n].line
	}
	return Verdict{Culprits: here, Sentence: fmt.Sprintf("Rank %d waits for %s (%s), and %s in %s (%s)%s.",
		n, what, at(n), lower(waits(rest)), cmp.Or(c.at[rest[0]].op, c.at[rest[0]].own), at(rest[0]), since(c.waited(here)))}, true
}

// messageWait is in a line of a program that starts a message and waits for it.
var messageWait = regexp.MustCompile(`\b(irecv|isend|batch_isend_irecv)\b`)

// lines returns the lines of the program in which ranks are: "train.py:27 and train.py:29".
func (c *analysis) lines(ranks []int) string {
	lines := map[string]bool{}
	for _, n := range ranks {
		lines[c.at[n].line] = true
	}
	return strings.Join(sorted(lines), " and ")
}
