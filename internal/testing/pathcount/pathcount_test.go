// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pathcount

import "testing"

// budgets are the most functions and files that an operation may enter, on all sides together.
var budgets = []struct {
	name      string
	program   string // a folder below this one
	functions int
	files     int
}{
	{"store set", "setpath", 120, 30},
	{"all-reduce over TCP", "allreducepath", 170, 40},
}

// meanLines is how long the functions of a path may be in the mean, so that a path is not made shorter by pasting functions together.
const meanLines = 15

// TestPathsAreShort counts the functions and files that an operation enters. A reader who follows the operation has to read all of them.
func TestPathsAreShort(t *testing.T) {
	for _, b := range budgets {
		t.Run(b.name, func(t *testing.T) {
			entered := measure(t, "internal/testing/pathcount/"+b.program)
			t.Logf("%d functions in %d files, %d lines, %.1f lines each",
				len(entered.Functions), entered.Files, entered.Lines, entered.MeanLines())
			if len(entered.Functions) > b.functions || entered.Files > b.files {
				t.Errorf(
					"%d functions in %d files, want at most %d in %d: take out calls that only pass something on or ask again what was "+
						"asked, and put functions of one idea into one file. The functions, with their lines:\n%s",
					len(entered.Functions), entered.Files, b.functions, b.files, entered)
			}
			if entered.MeanLines() >= meanLines {
				t.Errorf("the functions have %.1f lines each, want less than %d: split the long ones by what they do:\n%s",
					entered.MeanLines(), meanLines, entered)
			}
		})
	}
}
