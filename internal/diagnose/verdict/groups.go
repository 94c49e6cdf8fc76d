// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"regexp"
	"strings"
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
