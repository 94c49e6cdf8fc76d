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

func tell(name string, rank, size int, globals ...int) *story {
	return &story{
		ring: New(About{Group: name, Rank: rank, Size: size, GlobalRanks: globals, Transport: "tcp", Host: "node" + strconv.Itoa(rank), PID: 100 + rank}, 64),
		now:  base,
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

func TestVerdicts(t *testing.T) {
	r := reduction(1024)
	for _, c := range []struct {
		name  string
		dumps []Dump
		want  Finding
		ranks []int
		text  string // the whole sentence
	}{
		{
			"in step", dumpsOf(tell("0", 0, 2).does(r, barrier), tell("0", 1, 2).does(r, barrier)),
			InStep, nil, "all 2 ranks are in step: barrier #1 is complete and nothing is posted",
		},
		{
			"nothing posted", dumpsOf(tell("0", 0, 2), tell("0", 1, 2)),
			InStep, nil, "all 2 ranks are in step: no collective was posted yet",
		},
		{
			"one late", dumpsOf(tell("0", 0, 3).does(barrier).enters(r), tell("0", 1, 3).does(barrier), tell("0", 2, 3).does(barrier).enters(r)),
			LateRank,
			[]int{1},
			"rank 1 never entered #1 (it last entered barrier #0, complete for 10.0 s): ranks 0 and 2 wait in all_reduce #1 (sum of float32, 1 KiB) for 10.0 s",
		},
		{
			"late from the start", dumpsOf(tell("0", 0, 2).enters(barrier), tell("0", 1, 2)),
			LateRank,
			[]int{1},
			"rank 1 never entered #0 (it has entered nothing at all): rank 0 waits in barrier #0 for 10.0 s",
		},
		{
			"late because of a message", dumpsOf(tell("0", 0, 2).enters(barrier), tell("0", 1, 2).enters(message("recv", 0, 7))),
			LateRank,
			[]int{1},
			"rank 1 never entered #0 (it is in recv from rank 0 (uint8, 16 B, tag 7) for 10.0 s): rank 0 waits in barrier #0 for 10.0 s",
		},
		{
			"dead rank", dumpsOf(tell("0", 0, 3).does(r).fails(r, "peer lost: rank 2"), tell("0", 1, 3).does(r).fails(r, "peer lost: rank 2")),
			MissingRank,
			[]int{2},
			"rank 2 gave no dump (dead or cut off): ranks 0 and 1 wait in all_reduce #1 (sum of float32, 1 KiB) for 2.0 s",
		},
		{
			"missing, nobody waits", dumpsOf(tell("0", 0, 3).does(r), tell("0", 1, 3).does(r)),
			NoDump,
			[]int{2},
			"rank 2 gave no dump (dead or cut off), and the others are in step and wait for nothing",
		},
		{
			"different operation", dumpsOf(tell("0", 0, 3).does(r).enters(r), tell("0", 1, 3).does(r).enters(r), tell("0", 2, 3).does(r).enters(barrier)),
			OutOfStep,
			[]int{2},
			"operation #1 is different: ranks 0 and 1 call all_reduce #1 (sum of float32, 1 KiB), rank 2 calls barrier #1; rank 2 is out of step",
		},
		{
			"different size, two ranks", dumpsOf(tell("0", 0, 2).enters(r), tell("0", 1, 2).enters(reduction(2048))),
			OutOfStep,
			[]int{0, 1},
			"operation #0 is different: rank 0 calls all_reduce #0 (sum of float32, 1 KiB), rank 1 calls all_reduce #0 (sum of float32, 2 KiB)",
		},
		{
			"one call short", dumpsOf(tell("0", 0, 3).does(r, broadcast(0)).enters(barrier), tell("0", 1, 3).does(r, broadcast(0)).enters(barrier),
				tell("0", 2, 3).does(r).enters(barrier)),
			OutOfStep,
			[]int{2},
			"operation #1 is different: ranks 0 and 1 call broadcast #1 (float32, 64 B, root 0), rank 2 calls barrier #1; rank 2 is out of step, probably one broadcast short",
		},
		{
			"one call too many", dumpsOf(tell("0", 0, 3).does(r).enters(barrier), tell("0", 1, 3).does(r).enters(barrier),
				tell("0", 2, 3).does(r, broadcast(1)).enters(barrier)),
			OutOfStep,
			[]int{2},
			"operation #1 is different: ranks 0 and 1 call barrier #1, rank 2 calls broadcast #1 (float32, 64 B, root 1); rank 2 is out of step, probably with one broadcast too many",
		},
		{
			"different root in a sub-group", dumpsOf(tell("sub", 0, 2, 4, 7).enters(broadcast(0)), tell("sub", 1, 2, 4, 7).enters(broadcast(1))),
			OutOfStep,
			[]int{4, 7},
			"operation #0 is different: rank 4 calls broadcast #0 (float32, 64 B, root 4), rank 7 calls broadcast #0 (float32, 64 B, root 7)",
		},
		{
			"gather that does not add up",
			dumpsOf(tell("0", 0, 2).enters(Entry{Op: "gather", DType: "int8", In: 8, Out: 16, Peer: 0}), tell("0", 1, 2).enters(Entry{Op: "gather", DType: "int8", In: 4, Peer: 0})),
			OutOfStep,
			[]int{0},
			"gather #0 does not add up: the ranks give 12 B and expect 16 B in all; look at root 0 first",
		},
		{
			"uneven gather is fine",
			dumpsOf(tell("0", 0, 2).does(Entry{Op: "gather", DType: "int8", In: 8, Out: 12, Peer: 0}), tell("0", 1, 2).does(Entry{Op: "gather", DType: "int8", In: 4, Peer: 0})),
			InStep, nil, "all 2 ranks are in step: gather #0 is complete and nothing is posted",
		},
		{
			"receive without send", dumpsOf(tell("0", 0, 2).does(barrier).enters(message("recv", 1, 0)), tell("0", 1, 2).does(barrier)),
			StuckMessage,
			[]int{1},
			"rank 0 is stuck in recv from rank 1 (uint8, 16 B) for 10.0 s: rank 1 never sent it, it waits for nothing",
		},
		{
			"send with another tag", dumpsOf(tell("0", 0, 2).enters(message("recv", 1, 3)), tell("0", 1, 2).enters(message("send", 0, 4))),
			StuckMessage,
			[]int{1},
			"rank 0 is stuck in recv from rank 1 (uint8, 16 B, tag 3) for 10.0 s: rank 1 never sent it, but has a send with tag 4 (this one has tag 3)",
		},
		{
			"receive from any", dumpsOf(tell("0", 0, 2).enters(message("recv_any", -1, 0)), tell("0", 1, 2)),
			StuckMessage,
			[]int{0},
			"rank 0 is stuck in recv_any (uint8, 16 B) for 10.0 s: no rank has sent to it",
		},
		{
			"message to the dead", dumpsOf(tell("0", 0, 2).fails(message("send", 1, 0), "peer lost: rank 1")),
			StuckMessage,
			[]int{1},
			"rank 0's send to rank 1 (uint8, 16 B) failed after 2.0 s (peer lost: rank 1): rank 1 gave no dump (dead or cut off)",
		},
		{
			"both receive", dumpsOf(tell("0", 0, 2).enters(message("recv", 1, 0)), tell("0", 1, 2).enters(message("recv", 0, 0))),
			deadlock,
			[]int{0, 1},
			"deadlock: ranks 0 and 1 both wait to receive from the other",
		},
		{
			"a ring of receives", dumpsOf(tell("0", 0, 3).enters(message("recv", 1, 0)), tell("0", 1, 3).enters(message("recv", 2, 0)), tell("0", 2, 3).enters(message("recv", 0, 0))),
			deadlock,
			[]int{0, 1, 2},
			"deadlock: ranks 0 to 2 all wait to receive, each from another one of them",
		},
		{
			"still running", dumpsOf(tell("0", 0, 2).enters(r), tell("0", 1, 2).enters(r)),
			Unfinished,
			[]int{0, 1},
			"all ranks are in step, in all_reduce #0 (sum of float32, 1 KiB) for 10.0 s",
		},
		{
			"one has not started", dumpsOf(tell("0", 0, 2).enters(r), tell("0", 1, 2).queues(r)),
			Unfinished,
			[]int{1},
			"all ranks are in step, in all_reduce #0 (sum of float32, 1 KiB) for 10.0 s; rank 1 has posted it but not started it",
		},
		{
			"one is slow", dumpsOf(tell("0", 0, 2).does(r), tell("0", 1, 2).enters(r)),
			Unfinished,
			[]int{1},
			"rank 1 has not finished all_reduce #0 (sum of float32, 1 KiB), in it for 10.0 s, while the others have",
		},
		{
			"timeout with everybody in", dumpsOf(tell("0", 0, 2).fails(r, "timeout"), tell("0", 1, 2).fails(r, "timeout")),
			Unfinished,
			[]int{0, 1},
			"all ranks entered all_reduce #0 (sum of float32, 1 KiB), and it failed after 2.0 s; on rank 0 it failed: timeout",
		},
		{
			"behind", dumpsOf(tell("0", 0, 2).does(broadcast(0), broadcast(0)), tell("0", 1, 2).does(broadcast(0))),
			Behind,
			[]int{1},
			"rank 1 is behind, at #0 while rank 0 is at #1, but nobody waits",
		},
		{"no dump at all", nil, NoDump, nil, "the dumps hold no group"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Analyze(c.dumps)
			if v.Finding != c.want || v.Sentence != c.text || !slices.Equal(v.Ranks, c.ranks) {
				t.Errorf("%s %v: %s\n want %s %v: %s", v.Finding, v.Ranks, v.Sentence, c.want, c.ranks, c.text)
			}
			if strings.Contains(v.Sentence, "\n") {
				t.Error("the sentence has a line end")
			}
		})
	}
}

func TestGroupsOverlap(t *testing.T) {
	r := reduction(8)
	// Rank 1 is late in the world because it waits for rank 2 in a sub-group: the sub-group is the cause.
	world := []*story{tell("world", 0, 3).enters(r), tell("world", 1, 3), tell("world", 2, 3).enters(r)}
	sub := []*story{tell("sub", 0, 2, 1, 2).enters(barrier), tell("sub", 1, 2, 1, 2)}
	v := Analyze(dumpsOf(slices.Concat(world, sub)...))
	if v.Finding != deadlock || !strings.HasPrefix(v.Sentence, "group world: deadlock between group world and group sub") {
		t.Errorf("ranks 1 and 2 wait in different groups: %s: %s", v.Finding, v.Sentence)
	}
	// Without rank 2's wait in the world there is one cause only.
	world[2] = tell("world", 2, 3)
	v = Analyze(dumpsOf(slices.Concat(world, sub)...))
	if v.Finding != LateRank || !slices.Equal(v.Ranks, []int{2}) || !strings.HasPrefix(v.Sentence, "group sub: rank 2 never entered #0") {
		t.Errorf("%s %v: %s", v.Finding, v.Ranks, v.Sentence)
	}
	if w := v.Groups[0]; w.Group != "world" || !strings.Contains(w.Sentence, "rank 1 waits in barrier #0 of group sub") {
		t.Errorf("world: %s", w.Sentence)
	}
}

func TestSeveralDumpsOfARank(t *testing.T) {
	old := NewDump(base.Add(time.Millisecond), "asked", tell("0", 1, 2).snapshot())
	late := NewDump(base.Add(10*time.Second), "asked", tell("0", 1, 2).does(barrier).snapshot())
	first := NewDump(base.Add(10*time.Second), "asked", tell("0", 0, 2).does(barrier).snapshot())
	for _, dumps := range [][]Dump{{old, first, late}, {late, first, old}} {
		v := Analyze(dumps)
		if v.Finding != InStep || len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "several dumps of rank 1") {
			t.Errorf("%s %q %q", v.Finding, v.Sentence, v.Notes)
		}
	}
	other := tell("0", 1, 2)
	other.ring.about.PID = 999
	v := Analyze([]Dump{first, late, NewDump(base, "asked", other.snapshot())})
	if len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "different processes (process 101 on node1 and process 999 on node1)") {
		t.Errorf("%q", v.Notes)
	}
	// A dump from before the others entered proves nothing.
	v = Analyze([]Dump{NewDump(base.Add(10*time.Second), "asked", tell("0", 0, 2).enters(barrier).snapshot()), NewDump(base, "asked", tell("0", 1, 2).snapshot())})
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
			s := tell("g", r, size)
			for range rapid.IntRange(0, 4).Draw(t, "entries") {
				op := rapid.SampledFrom(ops).Draw(t, "op")
				e := Entry{Op: op, P2P: op == "send" || strings.HasPrefix(op, "recv"), Peer: rapid.IntRange(-1, 5).Draw(t, "peer"), In: int64(rapid.IntRange(0, 2).Draw(t, "in"))}
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
