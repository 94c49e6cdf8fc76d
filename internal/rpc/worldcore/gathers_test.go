// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort"
)

// An all-gather in all orders of its messages, with copies of them.
func TestGathers(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b"}
	g := NewGathers()
	id, s, err := g.Enter(names)
	if err != nil || id != "ab0" {
		t.Fatal(id, err)
	}
	if _, err = g.ToLeader(id, "b", 2, names, true); err != nil {
		t.Error(err)
	}
	if got := g.Missing(id, names); !slices.Equal(got, []string{"a"}) {
		t.Errorf("missing are %v", got)
	}
	if _, err = g.ToLeader(id, "b", 2, names, true); err != nil {
		t.Errorf("a copy from a Go worker: %v", err)
	}
	if _, err = g.ToLeader(id, "b", 2, names, false); err == nil {
		t.Error("a PyTorch worker has reported twice")
	}
	if _, err = g.ToLeader(id, "x", 2, names, true); err == nil {
		t.Error("a worker that takes no part has reported")
	}
	if done, failed := g.ToLeader(id, "a", 1, names, false); failed != nil || !done || !s.Done {
		t.Errorf("all have reported: %v, %v", done, failed)
	}
	if s.Err != nil || !slices.Equal(s.Items, []Item{{"b", 2}, {"a", 1}}) {
		t.Errorf("got %v, %v", s.Items, s.Err)
	}
	g.Leave(id)
	if done, failed := g.ToLeader(id, "b", 2, names, true); failed != nil || done || g.Of(id) != nil {
		t.Errorf("a copy for one that is over: %v, %v", done, failed)
	}
	if _, err = g.ToFollower("ab1", []Item{{"a", 1}, {"b", 2}}, false); err != nil { // before we have entered it
		t.Error(err)
	}
	if id, s, err = g.Enter(names); err != nil || id != "ab1" || !s.Done {
		t.Fatal(id, s, err)
	}
	if _, err = g.ToFollower(id, []Item{{"a", 1}, {"b", 2}}, false); err == nil {
		t.Error("a PyTorch leader has sent everything twice")
	}
	g.Leave(id)
	for i := range maxGathers {
		if _, err = g.ToLeader(fmt.Sprintf("ab%d", i+2), "b", 0, names, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = g.ToLeader("ab99999", "b", 0, names, false); cohort.CodeOf(err) != cohort.Exhausted {
		t.Errorf("more all-gathers than there may be: %v", err)
	}
}

// A leader that has given up knows why, for those who come later. It does not remember everything.
func TestGatherThatWasGivenUp(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c"}
	g := NewGathers()
	for range maxLost + 1 {
		id, _, err := g.Enter(names)
		if err != nil {
			t.Fatal(err)
		}
		g.GiveUp(id, names, "c")
		g.Leave(id)
	}
	if dead := g.Lost("abc1", names); dead != "c" {
		t.Errorf("got %q", dead)
	}
	if dead := g.Lost("abc0", names); dead != "" || len(g.lost["abc"]) != maxLost {
		t.Errorf("got %q, %d are remembered", dead, len(g.lost["abc"]))
	}
}

// A leader that cannot learn the number takes no reports, until it learns the number or there is a worker to ask again.
func TestGatherWithoutNumber(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c"}
	g := NewGathers()
	for _, id := range []string{"abc4", "abc5"} {
		if _, err := g.ToLeader(id, "b", 0, names, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.ToLeader("ab4", "b", 0, names[:2], true); err != nil {
		t.Fatal(err)
	}
	if got := g.GiveUpNext(names, "c"); !slices.Equal(got, []Report{{"abc4", "b"}, {"abc5", "b"}}) {
		t.Errorf("these wait: %v", got)
	}
	if _, err := g.ToLeader("abc6", "b", 0, names, true); err != nil || len(g.all) != 1 || g.Lost("abc6", names) != "c" {
		t.Errorf("a later report: %v, %d are kept, lost is %q", err, len(g.all), g.Lost("abc6", names))
	}
	if g.Rejoined("c"); g.Lost("abc6", names) != "" {
		t.Error("c is there again, and is declared dead")
	}
	g.GiveUpNext(names, "c")
	if g.First(names, 7); g.Lost("abc7", names) != "" {
		t.Error("the number is known, and the all-gather is taken for lost")
	}
	if got := g.GiveUpNext(names, "c"); got != nil || g.Lost("abc7", names) != "" {
		t.Errorf("the number is known, and the all-gather is given up: %v", got)
	}
}

// A worker that is closed while it asks a PyTorch worker for its number records no death: its own connections have ended.
func TestOwnCloseRecordsNoDeath(t *testing.T) {
	t.Parallel()
	closed := cohort.New("rpc: call", cohort.Closed, "the agent is closed")
	c := NewCounting(Self{Name: "a", Rank: 0, Size: 2, Round: -1}, 1, []string{"a", "b"}, false)
	todo := c.Step(Event{})
	for len(todo) > 0 {
		op := todo[0]
		todo = todo[1:]
		ev := Event{ID: op.ID}
		switch op.Kind {
		case OpEnd:
			if cohort.CodeOf(c.Err()) != cohort.Closed {
				t.Errorf("it ends with %v", c.Err())
			}
			return
		case OpAskCount:
			ev.Err = closed
		case OpGatherCount, OpIsGo, OpPause:
		case OpStates:
			ev.States = make([]State, len(op.Names))
		default:
			t.Errorf("it does %s", show(op))
		}
		todo = append(todo, c.Step(ev)...)
	}
	t.Error("it does not end")
}
