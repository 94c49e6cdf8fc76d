// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/internal/joblog"
	"github.com/cohort-dist/cohort/internal/launchcore"
)

// TestShownIsBounded: whatever the ranks of a node print and wait for, its message fits, and so does the view of all nodes.
func TestShownIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	evil := strings.Repeat("\x1b[31m\x00<é", 1000)
	s := Status{Attempt: 3, Node: 7, World: 1}
	for rank := range 3 * maxShown {
		s.Ranks = append(s.Ranks, WorkerStatus{Rank: rank, Phase: WorkerFailed, Since: now, Printed: now, Words: evil, Line: evil})
		s.Waits = append(s.Waits, StoreWait{Rank: rank, Key: evil, Since: now})
	}
	shown := s.shown(now)
	b, err := json.Marshal(message{Shown: &shown})
	if err != nil || len(b) > maxMessage || len(shown.Ranks) != maxShown {
		t.Errorf("%v: %d bytes for %d ranks", err, len(b), len(shown.Ranks))
	}
	var all []*shownMessage
	for range 2 * maxRoster {
		all = append(all, &shown)
	}
	view := bounded(all)
	b, err = json.Marshal(message{View: &viewMessage{Nodes: view}})
	if err != nil || len(b) > maxMessage || len(view) == 0 {
		t.Errorf("%v: %d bytes for %d nodes", err, len(b), len(view))
	}
	small := &shownMessage{Ranks: make([]shownRank, 8)}
	if view = bounded(repeat(small, 2*maxRoster)); len(view) != maxRoster {
		t.Errorf("%d small nodes of %d", len(view), maxRoster)
	}
}

func repeat(m *shownMessage, n int) []*shownMessage {
	all := make([]*shownMessage, n)
	for i := range all {
		all[i] = m
	}
	return all
}

// TestOthers: a board takes the ranks of other nodes, with times of its own clock, and nothing of another attempt.
func TestOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tail := joblog.NewTail(100)
		theirs := Status{Attempt: 1, Node: 1, World: 2, Ranks: []WorkerStatus{{Rank: 1, Phase: WorkerRuns, Since: time.Now().Add(-time.Minute), tails: [2]*joblog.Tail{tail}}}}
		theirs.Waits = []StoreWait{{Rank: 1, Key: "k", Since: time.Now().Add(-time.Second)}}
		shown := theirs.shown(time.Now())
		var b board
		b.change(func(s *Status) { s.Attempt, s.World, s.Node = 1, 2, 0 })
		own := &shownMessage{Attempt: 1, Node: 0, Ranks: []shownRank{{Rank: 0}}}
		b.others(&viewMessage{Nodes: []*shownMessage{own, nil, &shown}}, time.Now().Add(time.Hour)) // an hour ahead of theirs
		got := b.snapshot()
		if len(got.Others) != 1 || got.Others[0].Rank != 1 || got.Others[0].Phase != WorkerRuns || !got.Others[0].Printed.IsZero() ||
			got.Others[0].Since != time.Now().Add(59*time.Minute) || len(got.OtherWaits) != 1 || got.OtherWaits[0].Since != time.Now().Add(time.Hour-time.Second) {
			t.Errorf("%+v", got)
		}
		b.change(func(s *Status) { s.Attempt = 2 })
		b.others(&viewMessage{Nodes: []*shownMessage{&shown}}, time.Now())
		if got = b.snapshot(); got.Others != nil || got.OtherWaits != nil {
			t.Errorf("of an old attempt: %+v", got)
		}
	})
}

// TestHostPassesViewsOn: those who look are told of all nodes, others are not; a node's state of an earlier attempt is not
// passed on, and one who does not read gets the latest view alone.
func TestHostPassesViewsOn(t *testing.T) {
	t.Parallel()
	h := &host{nodes: map[launchcore.Node]*hostConn{}, attempt: 1}
	var conns []*hostConn
	for n := range 3 {
		c := &hostConn{id: launchcore.Node(n), out: newOutbox(), join: &joinMessage{Watches: n == 2}}
		h.nodes[c.id] = c
		conns = append(conns, c)
	}
	told := func(c *hostConn) string {
		m, ok, _ := c.out.next()
		if !ok {
			return "nothing"
		}
		var nodes []string
		for _, n := range m.View.Nodes {
			nodes = append(nodes, strconv.Itoa(n.Node))
		}
		return strings.Join(nodes, " ")
	}
	h.keepShown(conns[0], &shownMessage{Attempt: 0, Ranks: make([]shownRank, 1)})
	h.tellView()
	if got := told(conns[2]); got != "nothing" {
		t.Errorf("of an earlier attempt: %s", got)
	}
	h.keepShown(conns[2], &shownMessage{Attempt: 1, Node: 2, Ranks: make([]shownRank, maxShown+1)})
	for n, c := range conns[:2] {
		h.keepShown(c, &shownMessage{Attempt: 1, Node: n, Ranks: make([]shownRank, 1)})
		h.tellView()
	}
	for n, want := range []string{"nothing", "nothing", "0 1"} {
		if got := told(conns[n]); got != want {
			t.Errorf("node %d is told %s, want %s", n, got, want)
		}
	}
	h.tellView()
	h.attempt = 2
	h.keepShown(conns[0], &shownMessage{Attempt: 2})
	h.tellView()
	if got := told(conns[2]) + ", " + told(conns[2]); got != "0, nothing" {
		t.Errorf("in the next attempt: %s", got)
	}
}

// TestAnswersOfManyNodes: a node that has asked all others is not cut off because they answer faster than it reads. Its
// host's own words come first, and what waits is bounded.
func TestAnswersOfManyNodes(t *testing.T) {
	t.Parallel()
	h := &host{nodes: map[launchcore.Node]*hostConn{}}
	asker := &hostConn{id: 1, out: newOutbox(), join: &joinMessage{}} // without a wire: cutting it off would panic
	h.nodes[1] = asker
	const nodes = 1000
	seen := &seenMessage{examineMessage: examineMessage{ID: 1, Asker: 1}, Job: make(json.RawMessage, 1000)}
	for n := range nodes {
		h.take(hostEvent{conn: &hostConn{id: launchcore.Node(n + 2), join: &joinMessage{}}, message: message{Seen: seen}})
	}
	asker.say(message{Stop: &stopMessage{}})
	if m, ok, _ := asker.out.next(); !ok || m.Stop == nil {
		t.Errorf("first comes %+v", m)
	}
	got := 0
	for {
		m, ok, _ := asker.out.next()
		if !ok {
			break
		}
		if m.Seen == nil {
			t.Fatalf("%+v", m)
		}
		got++
	}
	if got != nodes {
		t.Errorf("%d answers of %d", got, nodes)
	}
	seen.Job = make(json.RawMessage, maxSeen)
	for range 2 * maxAnswers / maxSeen {
		asker.out.answer(message{Seen: seen})
	}
	if held := len(asker.out.mu.answers) * maxSeen; held > maxAnswers || held < maxAnswers/2 {
		t.Errorf("%d bytes are held", held)
	}
	asker.out.close()
	if _, ok, closed := asker.out.next(); ok || !closed {
		t.Error("a box that is closed holds back its end")
	}
}
