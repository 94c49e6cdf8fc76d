// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// TestAnyEvidence: whatever is seen, there is a sentence and no panic.
func TestAnyEvidence(t *testing.T) {
	t.Parallel()
	ops := []string{"all_reduce", "broadcast", "recv", "send", "init_process_group", "new_group", "barrier"}
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 5))
		j := Job{World: r.IntN(5), Local: r.IntN(2) == 0}
		for range r.IntN(5) {
			rank := r.IntN(4)
			x := at(rank, "load", 1)
			switch r.IntN(4) {
			case 0:
				x = in(rank, ops[r.IntN(len(ops))], fmt.Sprintf("src=%d", r.IntN(5)), 2)
			case 1:
				x = with(rank)
			case 2:
				x = Rank{Rank: rank, Trouble: "no permission"}
			}
			x.Moved = r.IntN(3) == 0
			x.State = []string{"R", "S", "D", "T", ""}[r.IntN(5)]
			if r.IntN(5) == 0 {
				x.Gone = "has exited"
			}
			if r.IntN(3) == 0 {
				x.Dump = &torchdump.Dump{}
				for range r.IntN(4) {
					x.Dump.Entries = append(x.Dump.Entries, torchdump.Entry{
						Group: strconv.Itoa(r.IntN(2)), Seq: r.IntN(4), Op: ops[r.IntN(2)], Open: r.IntN(2) == 0, Sizes: strconv.Itoa(r.IntN(2)),
					})
				}
			}
			j.Ranks = append(j.Ranks, x)
		}
		for range r.IntN(3) {
			keys := []string{"/default_pg/0//cpu//0/1", "/default_pg/0//2//cpu//0/1", "/mine"}
			j.Waits = append(j.Waits, Wait{Key: keys[r.IntN(3)], Rank: r.IntN(4) - 1, Age: time.Duration(r.IntN(5)) * time.Second})
		}
		if v := Judge(j); v.Sentence == "" {
			t.Fatalf("seed %d: no sentence", seed)
		}
	}
}

// TestProofOfSeveral: ranks that ended in the same way share a line, in the plural.
func TestProofOfSeveral(t *testing.T) {
	t.Parallel()
	v := Judge(Job{World: 4, Ranks: []Rank{in(0, "all_reduce", "", 27), {Rank: 1, Process: Process{Gone: "was killed by SIGKILL"}}, {Rank: 2, Process: Process{Gone: "has exited"}}, {Rank: 3, Process: Process{Gone: "has exited"}}}})
	for _, want := range []string{"rank 1: was killed by SIGKILL", "ranks 2 and 3: have exited"} {
		if !slices.Contains(v.Proof, want) {
			t.Errorf("no %q in %q", want, v.Proof)
		}
	}
}

// TestMovingRank: a rank that gets on with its own work while others wait for it is told, so that the watch does not take the job for hung.
func TestMovingRank(t *testing.T) {
	t.Parallel()
	moved := func(r *Rank) { r.Moved = true }
	v := Judge(Job{World: 3, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "evaluate", 12), moved), edit(in(2, "init_process_group", "", 5), moved)}})
	if v.Hung || !v.Still || !slices.Equal(v.Moving, []int{1}) { // rank 2 asks the store again and again
		t.Errorf("%v %v: %s", v.Hung, v.Moving, v.Sentence)
	}
}

// TestCalledJustNow: a call that was sent a moment ago blames no rank.
func TestCalledJustNow(t *testing.T) {
	t.Parallel()
	calls := []Call{{Op: "call", Func: "b.load", To: "b", Rank: 1, Age: time.Millisecond}}
	c := convene(Job{World: 2, Ranks: []Rank{worker(0, "a", calls, goCall, goMain), worker(1, "b", nil, goHandler, goMain)}})
	if v, found := c.called(); found {
		t.Error(v.Sentence)
	}
}

// TestProgress: a job that stands still has come no further.
func TestProgress(t *testing.T) {
	t.Parallel()
	at := func(seq int) []Rank {
		return []Rank{{Rank: 0}, {Rank: 1, Records: Records{Dump: &torchdump.Dump{Entries: []torchdump.Entry{{Group: "0", Seq: seq}, {Group: "1", Seq: 1}}}}}}
	}
	if again := Progress(at(5)); Progress(at(5)) != again || again == Progress(at(6)) || again == "" || Progress([]Rank{{Rank: 0}}) != "" {
		t.Errorf("%q, %q, %q", Progress(at(5)), Progress(at(6)), Progress([]Rank{{Rank: 0}}))
	}
}

// TestPlaceOfPoll: a rank that polls the store stands at one place, though it is at another line each time.
func TestPlaceOfPoll(t *testing.T) {
	t.Parallel()
	line := func(n int) []string {
		poll := edit(at(0, "my_barrier", n), func(r *Rank) {
			r.Moved, r.Loops, r.Sleeps, r.State, r.Line = true, true, true, "R", "while store.add(key, 0) < n:"
		})
		return Judge(Job{World: 1, Ranks: []Rank{poll}, Polls: []Wait{{Key: "/epoch1", Rank: 0, Age: 4 * time.Second, Asks: 80, Answer: "2"}}}).Places
	}
	if a, b := line(11), line(12); a[0] != b[0] {
		t.Errorf("a rank that polls the store is at %q and at %q", a, b)
	}
}
