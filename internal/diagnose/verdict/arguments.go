// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// defaultGroup is the group of all ranks, in words.
const defaultGroup = "the default group"

// groupPlace is where a collective of torch.distributed takes its group, among its arguments without a name.
var groupPlace = map[string]int{
	"barrier": 0, "monitored_barrier": 0,
	"all_reduce": 2, "all_reduce_coalesced": 2, "broadcast": 2, "broadcast_object_list": 2, "all_gather": 2, "all_gather_into_tensor": 2,
	"all_gather_object": 2, "all_gather_coalesced": 2, "all_gather_single": 2, "_all_gather_base": 2, "all_to_all": 2,
	"reduce": 3, "gather": 3, "gather_object": 3, "scatter": 3, "scatter_object_list": 3, "reduce_scatter": 3, "reduce_scatter_tensor": 3,
	"reduce_scatter_single": 3, "_reduce_scatter_base": 3, "all_to_all_single": 4,
}

// groupOf returns the group of the collective that a rank is in, as the program calls it. known is false where the text of the call does
// not tell: it is not all there, the call is made elsewhere, or the arguments come from a list.
func groupOf(op, text string) (name string, known bool) {
	place, collective := groupPlace[op]
	args, whole := arguments(text, op)
	if !collective || !whole {
		return "", false
	}
	name = "None"
	for i, arg := range args {
		value, named := strings.CutPrefix(arg, "group=")
		switch {
		case strings.HasPrefix(arg, "*"):
			return "", false
		case named:
			name = value
		case i == place && !strings.Contains(arg, "="):
			name = arg
		}
	}
	if name == "None" || strings.HasSuffix(name, "WORLD") {
		name = defaultGroup
	}
	return name, true
}

// arguments returns the arguments of a call of a function in a text, without spaces; whole is false if the call or its end is not there, or
// there are two.
func arguments(text, function string) (args []string, whole bool) {
	calls := regexp.MustCompile(`\b`+regexp.QuoteMeta(function)+`\(`).FindAllStringIndex(text, 2)
	if len(calls) != 1 { // of two in a line it is not known which one it is
		return nil, false
	}
	depth, quote := 0, rune(0)
	var arg strings.Builder
	for _, r := range text[calls[0][1]:] {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '"' || r == '\'':
			quote = r
		case strings.ContainsRune("([{", r):
			depth++
		case r == ')' && depth == 0:
			if arg.Len() > 0 {
				args = append(args, arg.String())
			}
			return args, true
		case strings.ContainsRune(")]}", r):
			depth--
		case r == ',' && depth == 0:
			args = append(args, arg.String())
			arg.Reset()
			continue
		case r == ' ':
			continue
		}
		arg.WriteRune(r)
	}
	return nil, false
}

// ofSome reports whether a collective is one of a group that the program names, so that not all ranks have to call it.
func ofSome(op, text string) bool {
	name, known := groupOf(op, text)
	return known && name != defaultGroup
}

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
