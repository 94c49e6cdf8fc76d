// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/testing/schematest"
)

// second is a time some seconds after a start.
func second(n int) time.Time { return time.Date(2026, 1, 2, 3, 4, 5+n, 678, time.UTC) }

// reports are what Run can return.
func reports() map[string]*Report {
	hung := Attempt{
		Number: 0, World: 3, Started: second(0), Ended: second(9), Hung: true,
		Verdict: "Rank 2 has not reached all_reduce", First: cohort.NoRank,
		Workers: []WorkerEnd{
			{Rank: 0, Host: "alpha", PID: 10, Code: -15, Kind: "stopped", Words: "was stopped", Started: second(1), Ended: second(9)},
			{Rank: 1, Local: 1, Host: "alpha", PID: 11, Code: -9, Kind: "stopped", Words: "was stopped", Started: second(1)},
		},
		Evidence: &Evidence{
			Taken: second(8), Took: 1500 * time.Millisecond,
			Ranks: []RankState{{Rank: 1, PID: 11, Doing: "load (data.py:17)", Idle: 41 * time.Second, Stack: "thread\n", Error: "moved"}},
			Waits: []StoreWait{{Key: "a/b", Rank: 1, Since: second(3)}, {Key: "c", Rank: cohort.NoRank, Since: second(7)}},
		},
	}
	failed := Attempt{
		Number: 1, World: 3, Started: second(10), Ended: second(20), First: 1,
		Workers: []WorkerEnd{
			{Rank: 0, Host: "alpha", Kind: "success", Words: "succeeded", PID: 12, Started: second(11), Ended: second(19)},
			{
				Rank: 1, Local: 1, Host: "alpha", PID: 13, Code: 1, Kind: "exception", Words: "raised ValueError: bad batch 17",
				Exception: "ValueError: bad batch 17", Where: "train.py:9", Traceback: "Traceback\n", Advice: "look", Started: second(11),
				Ended: second(18), LastErr: "ValueError\n",
			},
		},
	}
	return map[string]*Report{
		"restarted": {
			RunID: "job", Program: "train.py", Host: "alpha", Workers: 2, MaxRestarts: 1, Started: second(0), Ended: second(21),
			Sentence: "rank 1 raised ValueError: bad batch 17", Attempts: []Attempt{hung, failed}, LogDir: "logs", Bundle: "evidence",
		},
		"hung": {
			RunID: "job", Host: "alpha", Workers: 2, Started: second(0), Ended: second(9), Attempts: []Attempt{hung},
			Sentence: "the job hung and was stopped: Rank 2 has not reached all_reduce",
		},
		"succeeded": {
			RunID: "job", Host: "alpha", Workers: 1, Started: second(0), Ended: second(9), Succeeded: true,
			Attempts: []Attempt{{
				World: 1, Started: second(0), Ended: second(9), Succeeded: true, First: cohort.NoRank, Workers: failed.Workers[:1],
			}},
		},
		"interrupted": {
			RunID: "job", Host: "alpha", Workers: 1, Started: second(0), Ended: second(9), Signal: 2,
			Sentence: "the job was ended by SIGINT",
			Attempts: []Attempt{{World: 1, Started: second(0), Ended: second(9), Signal: 2, First: cohort.NoRank}},
		},
		"nothing began": {RunID: "job", Host: "alpha", Workers: 1, Started: second(0), Ended: second(1), Sentence: "1 of 2 nodes came"},
	}
}

// TestReportJSON: a report is a document by the schema, and reads back as what it was.
func TestReportJSON(t *testing.T) {
	t.Parallel()
	schema, err := schematest.Load("cohort.job.v1")
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range reports() {
		text, err := json.Marshal(*r)
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range schema.Check(text) {
			t.Errorf("%s: %s\n%s", name, wrong, text)
		}
		if strings.Contains(string(text), "0001-01-01") {
			t.Errorf("%s: it has a time that is not known:\n%s", name, text)
		}
		var back Report
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(*r, back, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%s: what is read is not what was written:\n%s", name, diff)
		}
		if r.Text(nil) != back.Text(nil) {
			t.Errorf("%s: its text is\n%s\nnot\n%s", name, back.Text(nil), r.Text(nil))
		}
	}
}

// TestForeignReport: what is not a report is refused, and the error says what it is.
func TestForeignReport(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"run_id":"x","attempts":null}`: `report.txt`,
		`{"schema":"cohort.job.v2"}`:     `"cohort.job.v2", not "cohort.job.v1"`,
		`[]`:                             "this is not a report",
	} {
		if err := json.Unmarshal([]byte(text), new(Report)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestSeenJSON: what the watch has seen of a job that hung is a document by the same schema, and has stacks and flight recorders.
func TestSeenJSON(t *testing.T) {
	t.Parallel()
	schema, err := schematest.Load("cohort.job.v1")
	if err != nil {
		t.Fatal(err)
	}
	main := stacks.Thread{ID: 11, Name: "main", State: "S", Frames: []stacks.Frame{{Func: "load", File: "/w/data.py", Line: 17}}}
	a := Attempt{Number: 2, Verdict: "Rank 1 has not reached all_reduce", seen: &verdict.Job{
		World: 2, Taken: second(3), Waits: []verdict.Wait{{Key: "k", Rank: -1, Age: time.Second}},
		Ranks: []verdict.Rank{
			{
				Rank: 1, Host: "alpha", PID: 11, Process: verdict.Process{State: "S", Idle: 41 * time.Second, Object: "10.0.0.5:443"},
				Stacks: verdict.Stacks{Threads: []stacks.Thread{main}, Main: &main},
				Records: verdict.Records{Dump: &torchdump.Dump{Entries: []torchdump.Entry{
					{Group: "0", Desc: "default_pg", Op: "all_reduce", Seq: 7, Open: true, Created: second(1).UnixNano()},
				}}},
			},
			{Rank: 0, Host: "alpha", Process: verdict.Process{Gone: "was killed by SIGKILL"}},
		},
	}}
	for _, recorders := range []bool{true, false} {
		text, err := json.Marshal(a.seenDocument(recorders))
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range schema.Check(text) {
			t.Errorf("%s\n%s", wrong, text)
		}
		for _, want := range []string{
			`"sentence":"Rank 1 has not reached all_reduce"`, `"where":"load (data.py:17)"`, `"idle_s":41`, `"stack":"  thread 11 `,
			`"text":"was killed by SIGKILL"`,
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("it lacks %s:\n%s", want, text)
			}
		}
		if strings.Contains(string(text), `"op":"all_reduce"`) != recorders {
			t.Errorf("flight recorders %v:\n%s", recorders, text)
		}
	}
}
