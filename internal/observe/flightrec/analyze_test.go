// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var base = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// story builds the dump of one rank.
type story struct {
	ring *Ring
	now  time.Time
	seq  uint64
	msg  uint64
	fail string
}

func newStory(name string, rank, size int, globals ...int) *story {
	return &story{
		ring: New(About{
			Group: name, Rank: rank, Size: size, GlobalRanks: globals, Transport: "tcp",
			Host: "node" + strconv.Itoa(rank), PID: 100 + rank,
		}, 64),
		now: base,
	}
}

func (s *story) post(e Entry) uint64 {
	s.now = s.now.Add(time.Millisecond)
	e.Posted = s.now
	if e.P2P {
		e.Seq = s.msg
		s.msg++
	} else {
		e.Seq = s.seq
		s.seq++
	}
	entry := s.ring.Post(e.Seq, e.P2P)
	e.ID = entry.ID
	*entry = e
	return e.ID
}

// does completes operations.
func (s *story) does(es ...Entry) *story {
	for _, e := range es {
		id := s.post(e)
		s.ring.Start(id, s.now)
		s.now = s.now.Add(time.Millisecond)
		s.ring.End(id, s.now, -1, nil)
	}
	return s
}

// enters starts an operation that does not end.
func (s *story) enters(e Entry) *story {
	id := s.post(e)
	s.ring.Start(id, s.now)
	return s
}

// queues posts an operation that does not start.
func (s *story) queues(e Entry) *story {
	s.post(e)
	return s
}

// fails ends an operation with an error, and the group with it.
func (s *story) fails(e Entry, text string) *story {
	id := s.post(e)
	s.ring.Start(id, s.now)
	s.now = s.now.Add(2 * time.Second)
	s.ring.End(id, s.now, -1, errors.New(text))
	s.fail = text
	return s
}

// snapshot is the group as it is ten seconds after the first operation.
func (s *story) snapshot() Group {
	g := s.ring.Snapshot()
	g.Failed = s.fail
	return g
}

func dumpsOf(stories ...*story) []Dump {
	var dumps []Dump
	for _, s := range stories {
		dumps = append(dumps, NewDump(base.Add(10*time.Second), "asked", s.snapshot()))
	}
	return dumps
}

func reduction(size int64) Entry {
	return Entry{Op: "all_reduce", Reduce: "sum", DType: "float32", Out: size, Peer: -1}
}

func broadcast(root int) Entry {
	return Entry{Op: "broadcast", DType: "float32", Out: 64, Peer: root}
}

func message(op string, peer int, tag uint32) Entry {
	return Entry{P2P: true, Op: op, DType: "uint8", In: 16, Peer: peer, Tag: tag}
}

var barrier = Entry{Op: "barrier", Peer: -1}

func TestGroupsOverlap(t *testing.T) {
	r := reduction(8)
	// Rank 1 is late in the world because it waits for rank 2 in a sub-group: the sub-group is the cause.
	world := []*story{newStory("world", 0, 3).enters(r), newStory("world", 1, 3), newStory("world", 2, 3).enters(r)}
	sub := []*story{newStory("sub", 0, 2, 1, 2).enters(barrier), newStory("sub", 1, 2, 1, 2)}
	v := Analyze(dumpsOf(slices.Concat(world, sub)...))
	if v.Finding != deadlock || !strings.HasPrefix(v.Sentence, "group world: deadlock between group world and group sub") {
		t.Errorf("ranks 1 and 2 wait in different groups: %s: %s", v.Finding, v.Sentence)
	}
	// Without rank 2's wait in the world there is one cause only.
	world[2] = newStory("world", 2, 3)
	v = Analyze(dumpsOf(slices.Concat(world, sub)...))
	if v.Finding != LateRank || !slices.Equal(v.Ranks, []int{2}) || !strings.HasPrefix(v.Sentence, "group sub: rank 2 never entered #0") {
		t.Errorf("%s %v: %s", v.Finding, v.Ranks, v.Sentence)
	}
	if w := v.Groups[0]; w.Group != "world" || !strings.Contains(w.Sentence, "rank 1 waits in barrier #0 of group sub") {
		t.Errorf("world: %s", w.Sentence)
	}
}

func TestSeveralDumpsOfARank(t *testing.T) {
	old := NewDump(base.Add(time.Millisecond), "asked", newStory("0", 1, 2).snapshot())
	late := NewDump(base.Add(10*time.Second), "asked", newStory("0", 1, 2).does(barrier).snapshot())
	first := NewDump(base.Add(10*time.Second), "asked", newStory("0", 0, 2).does(barrier).snapshot())
	for _, dumps := range [][]Dump{{old, first, late}, {late, first, old}} {
		v := Analyze(dumps)
		if v.Finding != InStep || len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "several dumps of rank 1") {
			t.Errorf("%s %q %q", v.Finding, v.Sentence, v.Notes)
		}
	}
	other := newStory("0", 1, 2)
	other.ring.about.PID = 999
	v := Analyze([]Dump{first, late, NewDump(base, "asked", other.snapshot())})
	if len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "different processes (process 101 on node1 and process 999 on node1)") {
		t.Errorf("%q", v.Notes)
	}
	// A dump from before the others entered proves nothing.
	v = Analyze([]Dump{
		NewDump(base.Add(10*time.Second), "asked", newStory("0", 0, 2).enters(barrier).snapshot()),
		NewDump(base, "asked", newStory("0", 1, 2).snapshot()),
	})
	if v.Finding != LateRank || !strings.Contains(v.Sentence, "the dump of rank 1 is older than that") {
		t.Errorf("%s", v.Sentence)
	}
}

func TestClaimsAreBounded(t *testing.T) {
	huge := Group{About: About{Group: "x", Size: math.MaxInt}}
	many := Group{About: About{Group: "y", Size: maxRanks}}
	many2 := Group{About: About{Group: "z", Size: maxRanks}}
	v := Analyze([]Dump{{Groups: []Group{huge, many, many2}}})
	if len(v.Groups) != 1 || len(v.Notes) != 2 {
		t.Errorf("%d groups, notes %q", len(v.Groups), v.Notes)
	}
}

// TestAnyDump: whatever the entries are, there is a verdict in one line, and it does not depend on the order of the dumps.
func TestAnyDump(t *testing.T) {
	ops := []string{"all_reduce", "barrier", "broadcast", "send", "recv", "recv_any", "gather", "odd"}
	rapid.Check(t, func(t *rapid.T) {
		var dumps []Dump
		size := rapid.IntRange(1, 4).Draw(t, "size")
		for r := range size {
			if !rapid.Bool().Draw(t, "dumped") {
				continue
			}
			s := newStory("g", r, size)
			for range rapid.IntRange(0, 4).Draw(t, "entries") {
				op := rapid.SampledFrom(ops).Draw(t, "op")
				e := Entry{
					Op: op, P2P: op == "send" || strings.HasPrefix(op, "recv"), Peer: rapid.IntRange(-1, 5).Draw(t, "peer"),
					In: int64(rapid.IntRange(0, 2).Draw(t, "in")),
				}
				switch rapid.IntRange(0, 2).Draw(t, "state") {
				case 0:
					s.does(e)
				case 1:
					s.enters(e)
				default:
					s.fails(e, "x")
				}
			}
			dumps = append(dumps, NewDump(base.Add(time.Minute), "asked", s.snapshot()))
		}
		v := Analyze(dumps)
		if v.Sentence == "" || strings.ContainsAny(v.Sentence, "\n") {
			t.Fatalf("sentence %q", v.Sentence)
		}
		slices.Reverse(dumps)
		if w := Analyze(dumps); w.Sentence != v.Sentence {
			t.Fatalf("%q, and in another order %q", v.Sentence, w.Sentence)
		}
		if _, err := Perfetto(dumps); err != nil {
			t.Fatal(err)
		}
	})
}
