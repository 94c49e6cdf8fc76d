// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"os"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/observe/progress"
)

// TestReported: what a process says of itself is read from outside, and one that says nothing has said nothing.
func TestReported(t *testing.T) {
	t.Parallel()
	defer progress.Section("load")()
	progress.StepTo(120)
	all := Reported(Job{Ranks: []Rank{{PID: os.Getpid()}, {PID: os.Getppid()}}})
	if got := all[0]; got.Section != "load" || got.Steps != 120 || got.SectionAge > time.Minute || got.StepAge > time.Minute {
		t.Errorf("%+v", got)
	}
	if got := all[1]; got != (verdict.Reported{}) {
		t.Errorf("the process that runs this test says %+v", got)
	}
}
