// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
