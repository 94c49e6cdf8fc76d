// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
)

const reportLimit = 1 << 20

// TestShortened: dumps fit into a message, and say what they have lost.
func TestShortened(t *testing.T) {
	t.Parallel()
	var dumps []flightrec.Dump
	for range 8 {
		dumps = append(dumps, flightrec.Dump{Groups: []flightrec.Group{{Entries: make([]flightrec.Entry, 2000)}}})
	}
	b := ShortenDumps(dumps, reportLimit)
	var got []flightrec.Dump
	if err := json.Unmarshal(b, &got); err != nil || len(b) > reportLimit || len(got) != 8 {
		t.Fatalf("%v: %d bytes, %d dumps", err, len(b), len(got))
	}
	if g := got[7].Groups[0]; len(g.Entries) == 0 || g.Lost+uint64(len(g.Entries)) != 2000 {
		t.Errorf("%d operations and %d lost", len(g.Entries), g.Lost)
	}
}

// TestTrimmed: the report of a node fits into a message, whatever its workers look like: here only that without stacks and dumps does.
func TestTrimmed(t *testing.T) {
	t.Parallel()
	const limit, threads, entries = 1 << 16, 40, 200 // a rank alone exceeds the limit, and so do the main threads of all ranks
	var big verdict.Job
	frames := slices.Repeat([]stacks.Frame{{Func: strings.Repeat("f", 100), File: strings.Repeat("x", 100)}}, 10)
	for rank := range 64 {
		r := verdict.Rank{
			Rank: rank, Stacks: verdict.Stacks{Threads: slices.Repeat([]stacks.Thread{{Frames: frames}}, threads)},
			Records: verdict.Records{Dump: &torchdump.Dump{Entries: make([]torchdump.Entry, entries)}},
		}
		r.Main = &r.Threads[0]
		big.Ranks = append(big.Ranks, r)
	}
	b := TrimReport(big, limit)
	var got verdict.Job
	if err := json.Unmarshal(b, &got); err != nil || len(b) > limit || len(got.Ranks) != 64 || got.Ranks[0].Main != nil {
		t.Errorf("%v: %d bytes, %d ranks", err, len(b), len(got.Ranks))
	}
	if small := TrimReport(verdict.Job{Ranks: big.Ranks[:1]}, limit); len(small) == 0 || !json.Valid(small) {
		t.Errorf("one rank takes %d bytes", len(small))
	}
	if len(big.Ranks[0].Threads) != threads || len(big.Ranks[0].Dump.Entries) != entries {
		t.Error("what was seen has changed")
	}
}

// TestMergeNCCL: what NCCL has told one node is not lost among what the others have seen, and no more is what a kernel has logged and what
// is noted of a host.
func TestMergeNCCL(t *testing.T) {
	t.Parallel()
	got := MergeReports([]verdict.Job{
		{World: 2, Notes: []string{"a"}},
		{NCCL: []string{"first"}, GPUErrors: []verdict.GPUError{{Number: 79}}},
		{NCCL: []string{"second"}, Notes: []string{"b", "a"}},
	})
	if !slices.Equal(got.NCCL, []string{"first"}) || len(got.GPUErrors) != 1 || !slices.Equal(got.Notes, []string{"a", "b"}) {
		t.Errorf("%+v", got)
	}
}

// TestMergeWaits: one store tells all nodes the same waits, and the node that knows the most ranks of them counts; each gateway tells those
// of its own node.
func TestMergeWaits(t *testing.T) {
	t.Parallel()
	for byNode, want := range map[bool][]int{false: {0, -1}, true: {0, -1, -1, 1}} { // of the same store both know one rank
		got := MergeReports([]verdict.Job{
			{NodeWaits: byNode, Waits: []verdict.Wait{{Key: "a", Rank: 0}, {Key: "a", Rank: -1}}},
			{NodeWaits: byNode, Waits: []verdict.Wait{{Key: "a", Rank: -1}, {Key: "a", Rank: 1}}},
		})
		var ranks []int
		for _, w := range got.Waits {
			ranks = append(ranks, w.Rank)
		}
		if !slices.Equal(ranks, want) {
			t.Errorf("by node %v: %v, want %v", byNode, ranks, want)
		}
	}
}

// TestClocksOfNodes: how long ranks have waited does not depend on the difference between the clocks of their nodes.
func TestClocksOfNodes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	frames := []stacks.Frame{
		{Func: "github.com/cohort-dist/cohort/group.(*Work).Wait", File: "work.go", Line: 7},
		{Func: "main.main", File: "/home/u/main.go", Line: 2},
	}
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		var nodes []verdict.Job
		for rank, clock := range []time.Time{now, now.Add(ahead)} {
			op := torchdump.Entry{
				Group: "0", Desc: "default_pg", Backend: "cohort", Op: []string{"all_reduce", "barrier"}[rank],
				Seq: 1, Open: true, Peer: -1, Created: clock.Add(-12 * time.Second).UnixNano(),
			}
			r := verdict.Rank{
				Rank: rank, Process: verdict.Process{State: "S"},
				Stacks:  verdict.Stacks{Threads: []stacks.Thread{{ID: 1, State: "S", Frames: frames}}},
				Records: verdict.Records{Dump: &torchdump.Dump{Entries: []torchdump.Entry{op}}},
			}
			r.Main = &r.Threads[0]
			if rank == 0 { // it does something else, and the other waits for it
				r.Dump.Entries, r.Main.Frames = nil,
					[]stacks.Frame{{Func: "time.Sleep", File: "time.go", Line: 1}, {Func: "main.load", File: "/home/u/load.go", Line: 2}}
			}
			nodes = append(nodes, verdict.Job{World: 2, Taken: clock, Ranks: []verdict.Rank{r}})
		}
		if got := verdict.Judge(MergeReports(nodes)).Sentence; !strings.HasSuffix(got, "rank 1 waits for 12 s.") {
			t.Errorf("the clock of rank 1 is ahead by %v: %s", ahead, got)
		}
	}
}

// TestQuestions: an answer goes to its question, and nothing waits for a node that answers twice or too late.
func TestQuestions(t *testing.T) {
	var q Questions
	first, one, forgetOne := q.Ask(1)
	second, two, forgetTwo := q.Ask(2)
	for _, id := range []int{second, first, second, first, second, second + 1} {
		text, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		q.Answered(&Answer{Question: Question{ID: id}, Job: text})
	}
	if len(one) != 1 || len(two) != 2 {
		t.Errorf("%d and %d answers, want 1 and 2", len(one), len(two))
	}
	if a, b := string((<-one).Job), string((<-two).Job); a != "1" || b != "2" {
		t.Errorf("answers %s and %s", a, b)
	}
	forgetOne()
	forgetTwo()
	q.Answered(&Answer{Question: Question{ID: first}})
	if len(one) != 0 {
		t.Error("an answer to a question that is forgotten")
	}
}
