// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/internal/diagnose/jobdoc"
)

// TestSectionsAreShown: what the ranks say of themselves is in the live view of the launcher, and in what "cohort ps" prints.
func TestSectionsAreShown(t *testing.T) {
	t.Parallel()
	id := "sections-" + strconv.Itoa(os.Getpid())
	cmd := exec.Command("cohort", "run", "--nproc-per-node", "2", "--rdzv-id", id, "--evidence", "-", "sayrank")
	text := startAndRead(t, cmd, false, []string{"XDG_STATE_HOME=" + t.TempDir()})
	waitForText(t, text, `ranks 0-1 run, [^,]*, in section "load" for [^,]*, steps 120-121`)
	out, err := exec.CommandContext(t.Context(), "cohort", "ps", id, "--json").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var doc jobdoc.Document
	if err = json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, r := range doc.Ranks {
		said = append(said, r.Section+" "+strconv.FormatUint(r.Step, 10))
		if r.SectionS <= 0 || r.StepS <= 0 {
			t.Errorf("rank %d has been there for %v s and has done a step %v s ago", r.Rank, r.SectionS, r.StepS)
		}
	}
	if want := []string{"load 120", "load 121"}; !cmp.Equal(said, want) {
		t.Errorf("ps: %q", said)
	}
	if out, err = exec.CommandContext(t.Context(), "cohort", "ps", id).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), `, section "load", step 120`) {
		t.Errorf("%v\n%s", err, out)
	}
}
