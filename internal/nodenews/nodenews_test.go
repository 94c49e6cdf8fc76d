// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodenews

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/frdump"
	"github.com/cohort-dist/cohort/internal/pystack"
	"github.com/cohort-dist/cohort/internal/recorder"
	"github.com/cohort-dist/cohort/internal/verdict"
)

const limit = 1 << 20

// TestShortened: dumps fit into a message, and say what they have lost.
func TestShortened(t *testing.T) {
	t.Parallel()
	var dumps []recorder.Dump
	for range 8 {
		dumps = append(dumps, recorder.Dump{Groups: []recorder.Group{{Entries: make([]recorder.Entry, 2000)}}})
	}
	b := Shortened(dumps, limit)
	var got []recorder.Dump
	if err := json.Unmarshal(b, &got); err != nil || len(b) > limit || len(got) != 8 {
		t.Fatalf("%v: %d bytes, %d dumps", err, len(b), len(got))
	}
	if g := got[7].Groups[0]; len(g.Entries) == 0 || g.Lost+uint64(len(g.Entries)) != 2000 {
		t.Errorf("%d operations and %d lost", len(g.Entries), g.Lost)
	}
}

// TestTrimmed: what a node tells fits into a message, whatever its workers look like.
func TestTrimmed(t *testing.T) {
	t.Parallel()
	var big verdict.Job
	frames := slices.Repeat([]pystack.Frame{{Func: strings.Repeat("f", 100), File: strings.Repeat("x", 100)}}, 100)
	for rank := range 64 {
		r := verdict.Rank{Rank: rank, Threads: slices.Repeat([]pystack.Thread{{Frames: frames}}, 50), Dump: &frdump.Dump{Entries: make([]frdump.Entry, 2000)}}
		r.Main = &r.Threads[0]
		big.Ranks = append(big.Ranks, r)
	}
	b := Trimmed(big, limit)
	var got verdict.Job
	if err := json.Unmarshal(b, &got); err != nil || len(b) > limit || len(got.Ranks) != 64 {
		t.Errorf("%v: %d bytes, %d ranks", err, len(b), len(got.Ranks))
	}
	if small := Trimmed(verdict.Job{Ranks: big.Ranks[:1]}, limit); len(small) == 0 || !json.Valid(small) {
		t.Errorf("one rank takes %d bytes", len(small))
	}
	if len(big.Ranks[0].Threads) != 50 || len(big.Ranks[0].Dump.Entries) != 2000 {
		t.Error("what was seen has changed")
	}
}

// TestMergeNCCL: what NCCL has told one node is not lost among what the others have seen, and no more is what a kernel has logged and what
// is noted of a host.
func TestMergeNCCL(t *testing.T) {
	t.Parallel()
	got := Merge([]verdict.Job{{World: 2, Notes: []string{"a"}}, {NCCL: []string{"first"}, GPUErrors: []verdict.GPUError{{Number: 79}}}, {NCCL: []string{"second"}, Notes: []string{"b", "a"}}})
	if !slices.Equal(got.NCCL, []string{"first"}) || len(got.GPUErrors) != 1 || !slices.Equal(got.Notes, []string{"a", "b"}) {
		t.Errorf("%+v", got)
	}
}
