// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"testing"
)

// TestReportedProof: sections and steps are part of the places, which stay the same while nothing moves, and do not grow with the job.
func TestReportedProof(t *testing.T) {
	t.Parallel()
	var j Job
	for n := range 20 {
		r := Rank{Rank: n, PID: n + 1}
		r.Section, r.Steps = "load\n", uint64(100+n/2)
		j.Ranks = append(j.Ranks, r)
	}
	first := Judge(j).Places
	want := []string{
		`ranks 0-19: no Python stack, section "load\n"`, "step 100: ranks 0 and 1", "step 101: ranks 2 and 3", "step 102: ranks 4 and 5",
		"step 103: ranks 6 and 7", "step 104: ranks 8 and 9", "step 105: ranks 10 and 11", "step 106: ranks 12 and 13",
		"step 107: ranks 14 and 15", "later steps: ranks 16-19",
	}
	if !slices.Equal(first, want) {
		t.Errorf("%q", first)
	}
	j.Ranks[0].Steps++
	if slices.Equal(Judge(j).Places, first) {
		t.Error("a step does not show")
	}
}
