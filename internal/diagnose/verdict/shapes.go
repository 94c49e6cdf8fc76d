// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// tensorArguments are what collectives call the tensor whose size must be the same on all ranks.
var tensorArguments = []string{"tensor", "input_tensor", "output"}

// tensorOf returns the tensor that is passed to a collective: "float32[4,2]"; "" if it is not known.
func tensorOf(f *stacks.Frame) string {
	if strings.HasPrefix(f.Func, "all_to_all") {
		return "" // each rank may have its own
	}
	for _, name := range tensorArguments {
		if value := argument(f, name); strings.Contains(value, "[") {
			return value
		}
	}
	return ""
}

// elements returns the type of a tensor and how many elements it has: "8 elements of float32".
func elements(tensor string) string {
	kind, sizes, _ := strings.Cut(strings.TrimSuffix(tensor, "]"), "[")
	n := 1
	for size := range strings.SplitSeq(sizes, ",") {
		one, _ := strconv.Atoi(size)
		n *= one
	}
	if n == 1 {
		return "1 element of " + kind
	}
	return strconv.Itoa(n) + " elements of " + kind
}

// shapes: the ranks are in the same collective with tensors that do not fit together.
func (c *analysis) shapes(here []int) (Verdict, bool) {
	kinds := map[string][]int{}
	for _, n := range here {
		if c.at[n].tensor == "" || c.at[n].class != inCollective {
			return Verdict{}, false
		}
		what := elements(c.at[n].tensor)
		kinds[what] = append(kinds[what], n)
	}
	if len(kinds) < 2 {
		return Verdict{}, false
	}
	return c.differ(kinds, func(n int) string { return c.at[n].where() + " with " + elements(c.at[n].tensor) }, since(c.waited(here))), true
}

// With is [Where] with the size of the tensor of a collective, where it is known: "all_reduce (train.py:53) with 8 elements of float32".
func With(frames []stacks.Frame) string {
	if len(frames) == 0 {
		return ""
	}
	p := locate(ofMain(&stacks.Thread{Frames: frames}))
	if p.tensor == "" {
		return p.where()
	}
	return p.where() + " with " + elements(p.tensor)
}
