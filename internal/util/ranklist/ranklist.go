// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ranklist writes lists of ranks as people do: "0-5,7", "ranks 1, 2 and 5".
package ranklist

import (
	"strconv"
	"strings"
)

// Short writes a sorted list: "0-5,7".
func Short[R ~int](ranks []R) string { return strings.Join(Parts(ranks, "-"), ",") }

// Named writes a sorted list: "rank 1" or "ranks 0-5,7".
func Named[R ~int](ranks []R) string {
	if len(ranks) == 1 {
		return "rank " + Short(ranks)
	}
	return "ranks " + Short(ranks)
}

// Parts writes a sorted list in parts, each a rank or a run of three and more with between in its middle: "0 to 5", "7".
func Parts[R ~int](ranks []R, between string) []string {
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if j-i >= 2 {
			parts = append(parts, strconv.Itoa(int(ranks[i]))+between+strconv.Itoa(int(ranks[j])))
			i = j + 1
			continue
		}
		parts = append(parts, strconv.Itoa(int(ranks[i])))
		i++
	}
	return parts
}

// Words writes "rank 1" or "ranks 1, 2 and 5".
func Words[R ~int](ranks []R) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(int(ranks[0]))
	}
	var b strings.Builder
	b.WriteString("ranks ")
	for i, r := range ranks {
		switch {
		case i > 0 && i == len(ranks)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(int(r)))
	}
	return b.String()
}
