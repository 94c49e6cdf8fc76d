// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestJSON: launchers send each other ranks as JSON, in which the sources of evidence do not show: all fields stand
// side by side. The file has a value in every field.
func TestJSON(t *testing.T) {
	t.Parallel()
	sent, err := os.ReadFile("testdata/rank.json")
	if err != nil {
		t.Fatal(err)
	}
	var r Rank
	d := json.NewDecoder(bytes.NewReader(sent))
	d.DisallowUnknownFields()
	if err = d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fieldsOf(t, sent), fieldsOf(t, again)); diff != "" {
		t.Error(diff)
	}
	for name, value := range fieldsOf(t, sent) {
		if value == nil || value == "" || value == 0.0 || value == false {
			t.Errorf("the file has no value for %s", name)
		}
	}
	var empty Rank
	if none, err := json.Marshal(empty); err != nil || len(fieldsOf(t, none)) != len(fieldsOf(t, sent)) {
		t.Errorf("%v: the fields of a rank of which nothing is known are %s", err, none)
	}
}

func fieldsOf(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}
