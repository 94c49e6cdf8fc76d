// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/bundle"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/agent"
)

// TestLargeEvidence: of several attempts that hung, what was seen of the last one is kept, and its flight recorders, however large, take
// no room from the last lines of any attempt. What PyTorch has written by itself is kept, too.
func TestLargeEvidence(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	seen := func(size int) *verdict.Job {
		return &verdict.Job{
			World: 1,
			Ranks: []verdict.Rank{{
				Process: verdict.Process{Object: "10.0.0.5:443"},
				Records: verdict.Records{Dump: &torchdump.Dump{
					Version: "2.10",
					Entries: []torchdump.Entry{{Desc: strings.Repeat("x", size)}},
				}},
			}},
		}
	}
	report := &Report{RunID: "large"}
	for i, size := range []int{mib, 58*mib - mib/2, 0} { // the last attempt failed
		a := Attempt{Number: i, Workers: []WorkerEnd{{LastErr: strings.Repeat("y", mib)}}}
		if size > 0 {
			a.seen, a.events = seen(size), "oom 0"
		}
		report.add(a)
	}
	run := t.TempDir()
	for _, name := range []string{agent.RecorderPrefix + "2_rank_0", "nccl_pipe"} {
		if err := os.WriteFile(filepath.Join(run, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	report.saveEvidence(t.TempDir(), run, t.Errorf)
	for name, want := range map[string]bool{
		"attempt0-rank0-stderr.txt": true, "attempt1-rank0-stderr.txt": true, "attempt2-rank0-stderr.txt": true,
		"attempt0-seen.json": false, "attempt1-seen.json": true, "attempt1-cgroup.txt": true, "attempt2-seen.json": false,
		agent.RecorderPrefix + "2_rank_0": true, "nccl_pipe": false, // what NCCL's watchdog has PyTorch write before it ends a rank
	} {
		if _, err := os.Stat(filepath.Join(report.Bundle, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(report.Bundle, "attempt1-seen.json"))
	if s := string(text); err != nil || len(s) > mib || !strings.Contains(s, "10.0.0.5:443") ||
		!strings.Contains(s, "the flight recorders were too large") {
		t.Errorf("%d bytes, %v: %.500s", len(s), err, s)
	}
}

// TestRecordersOfTheLastAttempt: of what PyTorch's flight recorders have written, that of the last attempt is kept:
// others would be taken for the same ranks. It takes no room from what was seen.
func TestRecordersOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	const size = 33 << 20 // there is room for one such file
	report := &Report{RunID: "again"}
	report.add(Attempt{Number: 1})
	report.add(Attempt{Number: 2, seen: &verdict.Job{World: 1, Notes: []string{strings.Repeat("x", size)}}})
	run := t.TempDir()
	for name, length := range map[string]int{"1_rank_0": 1, "2_rank_0": size, "2_rank_1": 1, "20_rank_0": 1} {
		if err := os.WriteFile(filepath.Join(run, agent.RecorderPrefix+name), make([]byte, length), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	report.saveEvidence(t.TempDir(), run, t.Errorf)
	kept, err := filepath.Glob(filepath.Join(report.Bundle, agent.RecorderPrefix+"*"))
	if err != nil || len(kept) != 1 || filepath.Base(kept[0]) != agent.RecorderPrefix+"2_rank_1" {
		t.Errorf("kept %v, %v", kept, err)
	}
	if info, err := os.Stat(filepath.Join(report.Bundle, "attempt2-seen.json")); err != nil || info.Size() < size {
		t.Errorf("what was seen: %v, %v", info, err)
	}
}

// TestEvidenceWithOlderClock: what is written now is not removed as the oldest though the clock was set back since the others were written.
func TestEvidenceWithOlderClock(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for hour := range keptBundles {
		b := bundle.Create(bundle.Root(), "later", now.Add(time.Duration(hour+1)*time.Hour))
		if _, err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	report := &Report{RunID: "now", Started: now}
	report.saveEvidence("", t.TempDir(), t.Errorf)
	if _, err := os.Stat(filepath.Join(report.Bundle, "report.json")); err != nil {
		t.Error(err)
	}
	if all, err := os.ReadDir(bundle.Root()); err != nil || len(all) != keptBundles {
		t.Errorf("%d bundles, %v", len(all), err)
	}
}
