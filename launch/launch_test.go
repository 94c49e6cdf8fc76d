// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
)

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"no program":            {Supervisor: []string{"x"}, Workers: 1},
		"Supervisor is not set": {Program: []string{"x"}, Workers: 1},
		"at least one":          {Program: []string{"x"}, Supervisor: []string{"x"}},
		"0 is the least":        {Program: []string{"x"}, Supervisor: []string{"x"}, Workers: 1, MaxRestarts: -1},
		"must not hold":         {Program: []string{"x"}, Supervisor: []string{"x"}, Workers: 1, RunID: "../x"},
		"local rank 3 to s":     {Program: []string{"x"}, Supervisor: []string{"x"}, Workers: 2, Logs: Logs{ShowRanks: []int{3}}},
		"--tee 5:1: the local rank 5 does": {
			Program: []string{"x"}, Supervisor: []string{"x"}, Workers: 2,
			Logs: Logs{Tee: StdMap{Ranks: map[int]Std{1: StdErr, 5: StdOut, 7: StdOut}}},
		},
		"--redirects 2:3: the local rank 2 does": {
			Program: []string{"x"}, Supervisor: []string{"x"}, Workers: 2, Logs: Logs{Redirects: StdMap{Ranks: map[int]Std{2: StdAll}}},
		},
		"node rank 2": {
			Program: []string{"x"}, Supervisor: []string{"x"}, Workers: 2,
			Nodes: Nodes{Max: 2, Endpoint: "x:1", Rank: new(2)},
		},
	} {
		if _, err := c.withDefaults(); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestReportText(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	r := &Report{
		Attempts: []Attempt{{
			First: 1, Started: at, Ended: at.Add(12 * time.Second),
			Workers: []WorkerEnd{
				{
					Rank: 0, Kind: "lost_peer", Words: "lost its connection to another rank: RuntimeError: x", Code: 1,
					Where: "step (/srv/train.py:19)",
				},
				{
					Rank: 1, Local: 1, Host: "vm", PID: 77, Kind: "exception", Words: "raised ValueError: bad batch 17", Code: 1,
					Where: "step (/srv/train.py:17)", Traceback: "Traceback\n  x", Started: at, Ended: at.Add(11 * time.Second),
					Advice: "other data",
				},
				{Rank: 2, Kind: "stopped", Words: "was stopped by the launcher (SIGTERM)", Code: -15},
				{Rank: 3, Kind: "stopped", Words: "was stopped by the launcher (SIGTERM)", Code: -15},
			},
			Evidence: &Evidence{Ranks: []RankState{
				{Rank: 2, Doing: "all_reduce (train.py:27)"},
				{Rank: 3, Doing: "all_reduce (train.py:27)"},
			}},
		}},
		Bundle: "/state/x",
	}
	r.judge(t.Context(), nil)
	want := `cohort: the job failed: rank 1 raised ValueError: bad batch 17
  rank 1 (host vm, local rank 1, pid 77): exit code 1, after 11s, in step (/srv/train.py:17)

    Traceback
      x

  try: other data
  the others:
    rank 0: lost its connection to another rank: RuntimeError: x, in step (/srv/train.py:19)
    ranks 2,3: stopped by the launcher (SIGTERM), in all_reduce (train.py:27)
  evidence: /state/x
`
	if diff := cmp.Diff(want, r.Text(nil)); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if r.ExitCode() != 1 {
		t.Errorf("exit code %d", r.ExitCode())
	}
}

// TestReportErr: the code of a failed job's error says why it failed.
// TestShortReport: whatever has happened, the short report has its sentence first, the advice, the end of the traceback, and few bytes.
func TestShortReport(t *testing.T) {
	t.Parallel()
	r := &Report{Sentence: "rank 1 raised ValueError: bad batch 17", Attempts: []Attempt{{First: 1}}}
	a := &r.Attempts[0]
	if got := (&Report{Succeeded: true}).Short(4096); got != "the job succeeded\n" {
		t.Errorf("%q", got)
	}
	for rank := range 300 {
		a.Workers = append(a.Workers, WorkerEnd{
			Rank: cohort.Rank(rank), Host: "vm", Code: 1, Kind: "lost_peer", Words: fmt.Sprintf("lost its connection to rank %d", rank*7),
		})
	}
	a.Workers[1].Advice = "other data"
	for lines, limit := range map[int]int{3: 4096, 400: 4096, 2: 1 << 20} {
		trace := strings.Repeat("  File \"/srv/träin.py\", line 17, in step\n", lines) + "ValueError: bad batch 17"
		for _, inStderr := range []bool{false, true} {
			a.Workers[1].Traceback, a.Workers[1].LastErr = trace, ""
			if inStderr {
				a.Workers[1].Traceback, a.Workers[1].LastErr = "", trace
			}
			got := r.Short(limit)
			if len(got) > limit || len(got) < min(limit, 4096)*9/10 || !utf8.ValidString(got) {
				t.Errorf("%d lines: %d bytes of %d", lines, len(got), limit)
			}
			if !strings.HasPrefix(got, r.Sentence+"\n  rank 1 (host vm") || !strings.Contains(got, "\n  try: other data\n") ||
				!strings.Contains(got, "line 17, in step\n    ValueError: bad batch 17\n") {
				t.Errorf("%d lines:\n%s", lines, got)
			}
		}
	}
	for limit := range 400 {
		if got := r.Short(limit); len(got) > limit {
			t.Errorf("%d bytes, not %d", len(got), limit)
		}
	}
	r.Attempts = nil
	if got := r.Short(4096); got != r.Sentence+"\n" {
		t.Errorf("%q", got)
	}
}

func TestReportErr(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	failed := Attempt{First: 1, Workers: []WorkerEnd{{Rank: 1, Code: 1, Words: "raised ValueError: bad batch 17"}}}
	stopped := Attempt{First: cohort.NoRank, Signal: 15}
	for name, c := range map[string]struct {
		report  Report
		trouble error
		code    error
		text    string
	}{
		"success": {Report{Attempts: []Attempt{failed, {Succeeded: true}}}, nil, nil, ""},
		"a worker failed": {
			Report{Attempts: []Attempt{failed}},
			nil, cohort.Remote,
			"launch: remote error: rank 1: raised ValueError: bad batch 17",
		},
		"it hung": {
			Report{Attempts: []Attempt{{First: cohort.NoRank, Hung: true, Verdict: "rank 1 sleeps."}}},
			nil,
			cohort.DeadlineExceeded, "launch: timeout: the job hung and was stopped: rank 1 sleeps",
		},
		"a signal": {
			Report{Signal: 15, Attempts: []Attempt{stopped}},
			nil, cohort.Aborted,
			"launch: aborted: the job was ended by SIGTERM",
		},
		"a signal, early": {Report{Signal: 2}, nil, cohort.Aborted, "launch: aborted: the job was ended by SIGINT"},
		"a signal, in between": {
			Report{Signal: 2, Attempts: []Attempt{failed}},
			nil, cohort.Aborted,
			"launch: aborted: the job was ended by SIGINT",
		},
		"cancelled": {Report{Attempts: []Attempt{stopped}}, nil, context.Canceled, "launch: cancelled: context canceled"},
		"no store":  {Report{}, refuse("no store"), cohort.InvalidArgument, "launch: invalid argument: no store"},
	} {
		ctx := t.Context()
		if name == "cancelled" {
			ctx = canceled
		}
		c.report.judge(ctx, c.trouble)
		err := c.report.Err()
		if !errors.Is(err, c.code) || c.text != "" && err.Error() != c.text {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
		if c.report.Succeeded != (err == nil) || err != nil && c.report.Sentence == "" {
			t.Errorf("%s: success %v, %q", name, c.report.Succeeded, c.report.Sentence)
		}
	}
}

// TestReportErrOfFile: a report that was read from a file is not a success because the error is not in it.
func TestReportErrOfFile(t *testing.T) {
	t.Parallel()
	r := Report{Sentence: "rank 1 raised ValueError"}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), r.Sentence) {
		t.Error(err)
	}
}
