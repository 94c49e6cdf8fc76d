// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

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
