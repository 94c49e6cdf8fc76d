// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
)

// TestShownIsBounded: whatever the ranks of a node print and wait for, its message fits.
func TestShownIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	evil := strings.Repeat("\x1b[31m\x00<é", 1000)
	s := Status{Attempt: 3, Node: 7, World: 1}
	for rank := range cohort.Rank(3 * nodecoord.MaxShown) {
		s.Ranks = append(s.Ranks, WorkerStatus{Rank: rank, Phase: WorkerFailed, Since: now, Printed: now, Words: evil, Line: evil})
		s.Waits = append(s.Waits, StoreWait{Rank: rank, Key: evil, Since: now})
	}
	shown := s.shown(now)
	b, err := json.Marshal(nodecoord.Message{Shown: &shown})
	if err != nil || len(b) > nodecoord.MaxMessage || len(shown.Ranks) != nodecoord.MaxShown {
		t.Errorf("%v: %d bytes for %d ranks", err, len(b), len(shown.Ranks))
	}
}

// TestOthers: a board takes the ranks of other nodes, with times of its own clock, and nothing of another attempt.
func TestOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tail := joblog.NewTail(100)
		theirs := Status{
			Attempt: 1, Node: 1, World: 2,
			Ranks: []WorkerStatus{{
				Rank: 1, Phase: WorkerRunning, Since: time.Now().Add(-time.Minute), tails: [2]*joblog.Tail{tail},
				Section: "load", Entered: time.Now().Add(-time.Second), Steps: 7,
			}},
		}
		theirs.Waits = []StoreWait{{Rank: 1, Key: "k", Since: time.Now().Add(-time.Second)}}
		shown := theirs.shown(time.Now())
		var b board
		b.change(func(s *Status) { s.Attempt, s.World, s.Node = 1, 2, 0 })
		own := &nodecoord.Shown{Attempt: 1, Node: 0, Ranks: []nodecoord.ShownRank{{Rank: 0}}}
		b.others(&nodecoord.View{Nodes: []*nodecoord.Shown{own, nil, &shown}}, time.Now().Add(time.Hour)) // an hour ahead of theirs
		got := b.snapshot()
		if len(got.Others) != 1 || got.Others[0].Rank != 1 || got.Others[0].Phase != WorkerRunning || !got.Others[0].Printed.IsZero() ||
			got.Others[0].Since != time.Now().Add(59*time.Minute) || len(got.OtherWaits) != 1 ||
			got.OtherWaits[0].Since != time.Now().Add(time.Hour-time.Second) {
			t.Errorf("%+v", got)
		}
		if r := got.Others[0]; r.Section != "load" || r.Entered != time.Now().Add(time.Hour-time.Second) || r.Steps != 7 {
			t.Errorf("what it says of itself: %+v", r)
		}
		b.change(func(s *Status) { s.Attempt = 2 })
		b.others(&nodecoord.View{Nodes: []*nodecoord.Shown{&shown}}, time.Now())
		if got = b.snapshot(); got.Others != nil || got.OtherWaits != nil {
			t.Errorf("of an old attempt: %+v", got)
		}
	})
}
