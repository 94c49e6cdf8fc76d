// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// Job is what the live view of "cohort run" shows below the output of the workers.
type Job struct {
	Program  string
	Elapsed  time.Duration
	Attempt  int // from 0
	Restarts int // that are allowed
	World    int
	Node     int
	Nodes    []JobNode
	// Gathering is the wait for nodes in words, or "".
	Gathering string
	Ranks     []JobRank
	// Unknown is the number of ranks, of other nodes, whose state is not known.
	Unknown int
	// Waiting are ranks that wait in the store.
	Waiting    []int
	WaitingFor time.Duration
	WaitingKey string
}

type (
	// JobNode is a node of a job.
	JobNode struct {
		Host          string
		Base, Workers int
	}
	// JobRank is a rank.
	JobRank struct {
		Rank  int
		Words string // what it does: "runs", "exited with code 3"
		Kind  State  // how to show it
		Since time.Duration
		Quiet time.Duration // since it last printed something, 0: not known
		Line  string        // a line that is not finished

		Section string // what it says it is in, since Entered
		Entered time.Duration
		Steps   uint64 // that it says it has done
	}
)

// quietFrom is how long a rank must print nothing to be shown as quiet.
const quietFrom = time.Minute

// RankColour paints text in the colour of a rank.
func (s Style) RankColour(rank int, text string) string {
	return s.paint("\x1b["+strconv.Itoa(31+(rank+3)%6)+"m", text)
}

// Lines draws j in width columns and at most height lines.
func (j Job) Lines(width, height int, style Style) []string {
	width = max(width-1, 1) // a full last column makes some terminals break the line
	var all []string
	add := func(paint func(string) string, text string) { all = append(all, paint(Cut(text, width))) }
	plain := func(s string) string { return s }
	add(style.Bold, j.head())
	if j.Gathering != "" {
		add(style.Yellow, j.Gathering)
	}
	if len(j.Nodes) > 1 {
		add(plain, j.nodes())
	}
	for _, g := range j.groups() {
		add(map[State]func(string) string{Ahead: style.Dim, Playing: plain, Done: style.Green, Failed: style.Red}[g.kind], g.text)
	}
	if j.Unknown > 0 {
		add(style.Dim, Plural(j.Unknown, "rank")+" on other nodes: not known")
	}
	if len(j.Waiting) > 0 {
		add(style.Yellow, j.waits())
	}
	for _, r := range j.Ranks {
		if r.Line != "" {
			name := fmt.Sprintf("rank %d ", r.Rank)
			text := Cut(strings.ReplaceAll(r.Line, "\t", " "), width-columns(name))
			if !style.Colour {
				text = ansi.Strip(text)
			}
			all = append(all, style.RankColour(r.Rank, Cut(name, width))+text)
		}
	}
	if len(all) > height {
		more := len(all) - height + 1
		all = append(all[:max(0, height-1)], style.Dim(Cut(fmt.Sprintf("and %d more", more), width)))
		all = all[:height]
	}
	return all
}

func (j Job) head() string {
	parts := []string{"cohort run " + printable.Line(j.Program)}
	if j.World > 0 {
		parts = append(parts, Plural(j.World, "rank"))
	}
	if j.Attempt > 0 || j.Restarts > 0 {
		parts = append(parts, fmt.Sprintf("attempt %d", j.Attempt+1), Plural(j.Restarts, "restart")+" allowed")
	}
	return strings.Join(append(parts, Age(j.Elapsed)), ", ")
}

func (j Job) nodes() string {
	parts := make([]string, len(j.Nodes))
	for i, n := range j.Nodes {
		parts[i] = fmt.Sprintf("%d %s", i, printable.Line(n.Host))
		if i == j.Node {
			parts[i] += " (here)"
		}
		if n.Workers > 0 {
			parts[i] += " " + ranksOf(span(n.Base, n.Workers))
		}
	}
	return "nodes: " + strings.Join(parts, "; ")
}

func span(base, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = base + i
	}
	return all
}

func ranksOf(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(ranks[0])
	}
	return "ranks " + Ranges(ranks)
}

// group is ranks in the same state.
type group struct {
	text string
	kind State
}

// groups joins ranks that do the same. Times are those of the first.
func (j Job) groups() []group {
	type key struct {
		words string
		kind  State
		quiet bool
		in    string
	}
	var order []key
	members := map[key][]JobRank{}
	for _, r := range j.Ranks {
		k := key{r.Words, r.Kind, r.Quiet >= quietFrom && r.Kind == Playing, r.Section}
		if members[k] == nil {
			order = append(order, k)
		}
		members[k] = append(members[k], r)
	}
	all := make([]group, len(order))
	for i, k := range order {
		var ranks []int
		since, quiet := time.Duration(0), time.Duration(1<<62)
		for _, r := range members[k] {
			ranks = append(ranks, r.Rank)
			since, quiet = max(since, r.Since), min(quiet, r.Quiet)
		}
		text := ranksOf(ranks) + " " + printable.Line(k.words)
		if len(ranks) == 1 {
			text = ranksOf(ranks) + " " + printable.Line(singular(k.words))
		}
		text += ", " + Age(since)
		if k.quiet {
			text += ", silent for " + Age(quiet)
		}
		text += reported(members[k])
		all[i] = group{text, k.kind}
	}
	return all
}

// reported is what ranks in one section say of themselves, in the time of the one that has been there longest.
func reported(ranks []JobRank) string {
	text := ""
	longest, first, last := ranks[0].Entered, ranks[0].Steps, ranks[0].Steps
	for _, r := range ranks {
		longest, first, last = max(longest, r.Entered), min(first, r.Steps), max(last, r.Steps)
	}
	if section := ranks[0].Section; section != "" {
		text = ", in section " + strconv.Quote(section) + " for " + Age(longest)
	}
	switch {
	case last == 0:
		return text
	case first == last:
		return fmt.Sprintf("%s, step %d", text, first)
	}
	return fmt.Sprintf("%s, steps %d-%d", text, first, last)
}

// singular makes "run" of several "runs" of one.
func singular(words string) string {
	switch words {
	case "run":
		return "runs"
	case "start":
		return "starts"
	case "have exited":
		return "has exited"
	case "are being stopped":
		return "is being stopped"
	}
	return words
}

// waits says who waits in the store, and who is not there.
func (j Job) waits() string {
	waiting := map[int]bool{}
	for _, r := range j.Waiting {
		waiting[r] = true
	}
	var others []int
	for _, r := range j.Ranks {
		if !waiting[r.Rank] && r.Kind == Playing {
			others = append(others, r.Rank)
		}
	}
	text := ranksOf(j.Waiting) + " wait"
	if len(j.Waiting) == 1 {
		text += "s"
	}
	text += " in the store for " + Age(j.WaitingFor)
	if len(others) > 0 {
		verb := " has not joined"
		if len(others) > 1 {
			verb = " have not joined"
		}
		text += "; " + ranksOf(others) + verb
	}
	return text + " (key " + printable.Line(j.WaitingKey) + ")"
}
