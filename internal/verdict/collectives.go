// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// missing: some ranks are in a collective and others are not.
func (c *court) missing() (Verdict, bool) {
	here := c.still(inCollective)
	late := c.ranks(func(r Rank, p position) bool {
		return p.class != inCollective && p.class != inWork && (r.Main != nil || p.class != unknown)
	})
	if len(here) > 0 && len(late) > 0 {
		what := "not reached " + c.at[here[0]].where()
		if m := subgroup.FindStringSubmatch(c.rank(here[0]).Line); len(late) > 1 && m != nil && m[1] != "None" && !strings.HasSuffix(m[1], "WORLD") {
			what += ", which only those in its group have to"
		}
		return c.late(late, what, here), true
	}
	work := c.still(inWork)
	switch {
	case len(work) == 0:
		return Verdict{}, false
	case c.onlyGPU(work) && slices.ContainsFunc(late, func(n int) bool { return c.rank(n).atWork() }):
		return Verdict{}, false // the GPUs may be at work, too
	case len(late) == 0 && len(here) > 0 && c.at[work[0]].op == "backward":
		return Verdict{Culprits: here, Sentence: fmt.Sprintf("%s %s %s where %s in %s%s, which in DDP needs all ranks: did %s get fewer batches?",
			name(here), verb(here, "call"), c.at[here[0]].where(), lower(is(work)), c.at[work[0]].where(), since(c.waited(work)), lower(name(here)))}, true
	case len(late) == 0 && len(here) > 0:
		return Verdict{Culprits: work, Sentence: fmt.Sprintf("%s %s for an operation that was started earlier, in %s, where %s %s %s%s: each side waits for what the other has not called.",
			name(work), verb(work, "wait"), c.at[work[0]].where(), lower(name(here)), verb(here, "call"), c.at[here[0]].where(), since(c.waited(work)))}, true
	case len(late) == 0:
		return Verdict{}, false
	case c.at[work[0]].op != "":
		what := "not reached "
		if !slices.ContainsFunc(late, func(n int) bool { return !withinBackward(c.rank(n).Main) }) {
			what = "not finished "
		}
		return c.late(late, what+c.at[work[0]].where(), work), true
	}
	return c.late(late, "not started the operation that is waited for in "+c.at[work[0]].where(), work), true
}

// subgroup is a line of a program that names the group of a collective. Who is in it cannot be seen.
var subgroup = regexp.MustCompile(`\bgroup=([\w.]+)`)

// mismatch: the ranks are in different collectives.
func (c *court) mismatch() (Verdict, bool) {
	ops := map[string][]int{}
	for _, n := range c.still(inCollective) {
		ops[c.at[n].op] = append(ops[c.at[n].op], n)
	}
	if len(ops) < 2 {
		return Verdict{}, false
	}
	hint := ""
	if users := ops[modelForward]; users != nil {
		rest := slices.DeleteFunc(c.still(inCollective), func(n int) bool { return slices.Contains(users, n) })
		hint = fmt.Sprintf("; if %s did not get fewer batches, let %s use the model's .module, which needs no other rank", lower(name(rest)), lower(name(users)))
	}
	return c.differ(ops, func(n int) string { return c.at[n].where() }, since(c.waited(c.still(inCollective)))+hint), true
}

// modelForward is a collective that its callers may not take for one: it makes the buffers of all ranks equal.
const modelForward = "DistributedDataParallel.forward"

// rooted: the ranks are in the same collective and name different ranks as its source or its destination.
func (c *court) rooted() (Verdict, bool) {
	roots := map[string][]int{}
	for _, n := range c.still(inCollective) {
		p := c.at[n]
		if p.peer < 0 {
			return Verdict{}, false
		}
		root := p.side + "=" + strconv.Itoa(p.peer)
		roots[root] = append(roots[root], n)
	}
	if len(roots) < 2 {
		return Verdict{}, false
	}
	return c.differ(roots, func(n int) string {
		return fmt.Sprintf("%s with %s=%d (%s)", c.at[n].op, c.at[n].side, c.at[n].peer, c.at[n].line)
	}, since(c.waited(c.still(inCollective)))), true
}

// differ names the minority. With a tie the lower ranks are taken for the rule.
func (c *court) differ(kinds map[string][]int, say func(int) string, suffix string) Verdict {
	odd, rule := minority(kinds)
	return Verdict{
		Culprits: odd,
		Sentence: fmt.Sprintf("%s %s %s where %s %s %s%s.", name(odd), verb(odd, "call"), say(odd[0]), lower(name(rule)), verb(rule, "call"), say(rule[0]), suffix),
	}
}

// same: all ranks are in the same collective.
func (c *court) same() (Verdict, bool) {
	here := c.still(inCollective, inWork)
	if len(here) == 0 || c.onlyGPU(here) || len(here) < len(c.ranks(func(_ Rank, p position) bool { return p.class == inCollective })) {
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
	return Verdict{Sentence: fmt.Sprintf(
		"%s in %s (%s)%s and none makes progress: the network between them is stuck, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
		is(here), p.op, c.lines(here), since(c.rank(here[0]).Idle))}, true
}

// apart: the ranks wait in calls that look alike, and the lines of the program tell how they differ.
func (c *court) apart(here []int) (Verdict, bool) {
	groups, messages := map[string][]int{}, map[string][]int{}
	for _, n := range here {
		line, group := c.rank(n).Line, "the default group"
		if line == "" {
			return Verdict{}, false
		}
		if m := subgroup.FindStringSubmatch(line); m != nil && m[1] != "None" && !strings.HasSuffix(m[1], "WORLD") {
			group = m[1]
		}
		groups[group] = append(groups[group], n)
		message := ""
		if c.at[n].class == inWork {
			message = messageWait.FindString(line)
		}
		messages[message] = append(messages[message], n)
	}
	waited := since(c.waited(here))
	if rest := messages[""]; len(rest) > 0 && len(rest) < len(here) {
		n := slices.DeleteFunc(slices.Clone(here), func(n int) bool { return slices.Contains(rest, n) })[0]
		what := map[string]string{"irecv": "a message that nobody sends", "isend": "its message to be taken, and nobody takes it"}[messageWait.FindString(c.rank(n).Line)]
		return Verdict{Culprits: here, Sentence: fmt.Sprintf("Rank %d waits for %s (%s, %s); %s at %s (%s)%s.",
			n, what, c.at[n].line, c.rank(n).Line, lower(is(rest)), c.at[rest[0]].line, c.rank(rest[0]).Line, waited)}, true
	}
	if len(groups) < 2 || slices.ContainsFunc(here, func(n int) bool { return c.at[n].class != inCollective }) {
		return Verdict{}, false
	}
	var parts []string
	for _, group := range slices.SortedFunc(maps.Keys(groups), func(a, b string) int { return groups[a][0] - groups[b][0] }) {
		ranks := groups[group]
		parts = append(parts, fmt.Sprintf("%s of %s (%s)", lower(name(ranks)), group, c.lines(ranks)))
	}
	return Verdict{Culprits: here, Sentence: fmt.Sprintf("%s in %s of groups with different names%s: %s; every rank must call the collectives of all its groups in the same order.",
		is(here), c.at[here[0]].op, waited, strings.Join(parts, ", "))}, true
}

// messageWait is in a line of a program that starts a message and waits for it.
var messageWait = regexp.MustCompile(`\b(irecv|isend)\b`)

// lines returns the lines of the program in which ranks are: "train.py:27 and train.py:29".
func (c *court) lines(ranks []int) string {
	lines := map[string]bool{}
	for _, n := range ranks {
		lines[c.at[n].line] = true
	}
	return strings.Join(sorted(lines), " and ")
}
