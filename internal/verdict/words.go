// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
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
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		part := strconv.Itoa(ranks[i])
		switch j - i {
		case 0:
			parts = append(parts, part)
		case 1:
			parts = append(parts, part, strconv.Itoa(ranks[j]))
		default:
			parts = append(parts, part+"-"+strconv.Itoa(ranks[j]))
		}
		i = j + 1
	}
	return "Ranks " + strings.Join(parts, ",")
}

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func is(ranks []int) string {
	if len(ranks) == 1 {
		return name(ranks) + " is"
	}
	return name(ranks) + " are"
}

func are(ranks []int) string { return is(ranks) }

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
		return "nobody waits for it yet"
	case 1:
		return lower(name(ranks)) + " waits"
	}
	return lower(name(ranks)) + " wait"
}

// since returns " for 94 s", or nothing for what is too short to matter or not known.
func since(d time.Duration) string {
	if d < time.Second {
		return ""
	}
	return " for " + strconv.FormatInt(int64(d.Seconds()), 10) + " s"
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
