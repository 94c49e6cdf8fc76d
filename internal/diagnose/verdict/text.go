// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// says is what ranks say of themselves, as far as they say the same: "in section "load" for 40 s, step 120"; "" if they say nothing.
func (c *analysis) says(ranks []int) string {
	first := c.rank(ranks[0])
	all := func(same func(r *Rank) bool) bool {
		return !slices.ContainsFunc(ranks, func(n int) bool { return !same(c.rank(n)) })
	}
	text := ""
	if first.Section != "" && all(func(r *Rank) bool { return r.Section == first.Section }) {
		text = "in section " + strconv.Quote(first.Section) + since(first.SectionAge)
	}
	if first.Steps == 0 || !all(func(r *Rank) bool { return r.Steps == first.Steps }) {
		return text
	}
	if text == "" {
		return fmt.Sprintf("at step %d", first.Steps)
	}
	return fmt.Sprintf("%s, step %d", text, first.Steps)
}

// alsoSays is says as a clause that follows another.
func (c *analysis) alsoSays(ranks []int) string {
	if text := c.says(ranks); text != "" {
		return ", " + text
	}
	return ""
}

// maxSteps bounds the lines with steps in the proof.
const maxSteps = 8

// steps lists the steps that ranks say they have done, the ranks with the same number in one line, the earliest first.
func (c *analysis) steps() []string {
	by := map[uint64][]int{}
	for _, r := range c.job.Ranks {
		if r.Steps > 0 && r.Gone == "" {
			by[r.Steps] = append(by[r.Steps], r.Rank)
		}
	}
	var lines []string
	numbers := slices.Sorted(maps.Keys(by))
	for _, n := range numbers[:min(len(numbers), maxSteps)] {
		lines = append(lines, fmt.Sprintf("step %d: %s", n, lower(name(by[n]))))
	}
	if rest := numbers[min(len(numbers), maxSteps):]; len(rest) > 0 {
		var ranks []int
		for _, n := range rest {
			ranks = append(ranks, by[n]...)
		}
		slices.Sort(ranks)
		lines = append(lines, "later steps: ranks "+ranklist.Short(ranks))
	}
	return lines
}

// name returns "Rank 1", "Ranks 0 and 2", "Ranks 0-5,7".
func name(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "No rank"
	case 1:
		return "Rank " + strconv.Itoa(ranks[0])
	case 2:
		return "Ranks " + strconv.Itoa(ranks[0]) + " and " + strconv.Itoa(ranks[1])
	}
	return "Ranks " + ranklist.Short(ranks)
}

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func was(ranks []int) string {
	if len(ranks) == 1 {
		return "was"
	}
	return "were"
}

func is(ranks []int) string {
	if len(ranks) == 1 {
		return name(ranks) + " is"
	}
	return name(ranks) + " are"
}

func has(ranks []int) string {
	if len(ranks) == 1 {
		return "has"
	}
	return "have"
}

func pronoun(ranks []int) string {
	if len(ranks) == 1 {
		return "it is"
	}
	return "they are"
}

func verb(ranks []int, v string) string {
	if len(ranks) == 1 {
		return v + "s"
	}
	return v
}

// waits returns "ranks 0 and 2 wait for it".
func waits(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "no rank waits for it yet"
	case 1:
		return lower(name(ranks)) + " waits"
	}
	return lower(name(ranks)) + " wait"
}

// sends returns "ranks 0 and 2 send".
func sends(ranks []int) string { return lower(name(ranks)) + " " + verb(ranks, "send") }

// since returns " for 94 s", or nothing for what is too short to matter or not known.
func since(d time.Duration) string {
	if d < time.Second {
		return ""
	}
	return " for " + strconv.FormatInt(int64(d.Seconds()), 10) + " s"
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
