// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// TestAnyEvidence: whatever is seen, there is a sentence and no panic.
func TestAnyEvidence(t *testing.T) {
	t.Parallel()
	ops := []string{"all_reduce", "broadcast", "recv", "send", "init_process_group", "new_group", "barrier"}
	for seed := range seeds.Range(20000) {
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
						Group: strconv.Itoa(r.IntN(2)), Seq: r.IntN(4), Op: ops[r.IntN(2)], Open: r.IntN(2) == 0,
						Sizes: strconv.Itoa(r.IntN(2)),
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
	v := Judge(Job{World: 4, Ranks: []Rank{
		in(0, "all_reduce", "", 27),
		{Rank: 1, Process: Process{Gone: "was killed by SIGKILL"}},
		{Rank: 2, Process: Process{Gone: "has exited"}},
		{Rank: 3, Process: Process{Gone: "has exited"}},
	}})
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
	v := Judge(Job{World: 3, Ranks: []Rank{
		in(0, "barrier", "", 27), edit(at(1, "evaluate", 12), moved),
		edit(in(2, "init_process_group", "", 5), moved),
	}})
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
		return []Rank{
			{Rank: 0},
			{Rank: 1, Records: Records{Dump: &torchdump.Dump{Entries: []torchdump.Entry{{Group: "0", Seq: seq}, {Group: "1", Seq: 1}}}}},
		}
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
		return Judge(Job{
			World: 1, Ranks: []Rank{poll},
			Polls: []Wait{{Key: "/epoch1", Rank: 0, Age: 4 * time.Second, Asks: 80, Answer: "2"}},
		}).Places
	}
	if a, b := line(11), line(12); a[0] != b[0] {
		t.Errorf("a rank that polls the store is at %q and at %q", a, b)
	}
}

const (
	c10d   = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
	logger = "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py"
	script = "/srv/job/train.py"
)

// in returns a rank whose main thread is in a call of torch.distributed that the script makes in a line.
func in(rank int, op, args string, line int) Rank {
	return with(rank, stacks.Frame{Func: op, File: c10d, Line: 1, Args: args},
		stacks.Frame{Func: "_exception_logger.<locals>.wrapper", File: logger, Line: 83},
		stacks.Frame{Func: "step", File: script, Line: line}, stacks.Frame{Func: "<module>", File: script, Line: 99})
}

// at returns a rank that is in a function of the script.
func at(rank int, function string, line int) Rank {
	return with(rank, stacks.Frame{Func: function, File: script, Line: line}, stacks.Frame{Func: "<module>", File: script, Line: 99})
}

func with(rank int, frames ...stacks.Frame) Rank {
	t := stacks.Thread{ID: 100 + rank, State: "S", Kernel: "futex_do_wait", Frames: frames}
	return Rank{Rank: rank, PID: 100 + rank, Process: Process{State: "S"}, Stacks: Stacks{Threads: []stacks.Thread{t}, Main: &t}}
}

func edit(r Rank, change func(*Rank)) Rank {
	change(&r)
	return r
}

var (
	goCall    = stacks.Frame{Func: module + "/rpc.Call", File: module + "/rpc/call.go", Line: 9}
	goMain    = stacks.Frame{Func: "main.main", File: "/home/u/main.go", Line: 2}
	goHandler = stacks.Frame{Func: "main.load", File: "/home/u/load.go", Line: 12}
)

// worker is a Go rank that is a worker of RPC.
func worker(rank int, name string, calls []Call, frames ...stacks.Frame) Rank {
	r := with(rank, frames...)
	r.Worker = &Worker{Name: name, Calls: calls}
	return r
}

// TestSlowest: of a job that does not hang the rank is named that comes last each time, and no other.
func TestSlowest(t *testing.T) {
	t.Parallel()
	const lag = 300 * time.Millisecond
	// rank makes one that came to each of some collectives so much later than it began.
	rank := func(n, collectives int, later func(seq int) time.Duration) Rank {
		r := edit(at(n, "step", 5), func(r *Rank) { r.Moved, r.Host, r.Dump = true, "a", &torchdump.Dump{} })
		for seq := 1; seq <= collectives; seq++ {
			at := time.Unix(1000, 0).Add(time.Duration(seq)*time.Second + later(seq))
			r.Dump.Entries = append(r.Dump.Entries,
				torchdump.Entry{Group: "0", Desc: "default_pg", Seq: seq, Op: "all_reduce", Created: at.UnixNano()})
		}
		return r
	}
	never := func(int) time.Duration { return 0 }
	always := func(int) time.Duration { return lag }
	const names = "; rank 1 came last to each of the last 8 collectives of default_pg, at least 300ms after the others"
	for name, c := range map[string]struct {
		ranks []Rank
		named bool
	}{
		"one does not tell": {[]Rank{
			rank(0, 20, never), rank(1, 20, always),
			edit(at(2, "step", 5), func(r *Rank) { r.Moved, r.Host = true, "a" }),
		}, false},
		"one was not seen": {[]Rank{rank(0, 20, never), rank(1, 20, always), rank(3, 20, never)}, false},
		"one has ended":    {[]Rank{rank(0, 20, never), rank(1, 20, always), {Rank: 2, Process: Process{Gone: Succeeded}}}, true},
		"always":           {[]Rank{rank(0, 20, never), rank(1, 20, always), rank(2, 20, never)}, true},
		"one is ahead":     {[]Rank{rank(0, 21, never), rank(1, 20, always), rank(2, 20, never)}, true},
		"lately": {[]Rank{
			rank(0, 20, never),
			rank(1, 20, func(seq int) time.Duration { return lag * time.Duration(min(1, seq/13)) }), rank(2, 20, never),
		}, true},
		"in turn": {[]Rank{
			rank(0, 20, func(seq int) time.Duration { return 2 * lag * time.Duration(seq%2) }),
			rank(1, 20, always), rank(2, 20, never),
		}, false},
		"hardly": {[]Rank{
			rank(0, 20, never), rank(1, 20, func(int) time.Duration { return time.Millisecond }),
			rank(2, 20, never),
		}, false},
		"too few":            {[]Rank{rank(0, 7, never), rank(1, 7, always)}, false},
		"no other recorder":  {[]Rank{at(0, "step", 5), rank(1, 20, always)}, false},
		"on different hosts": {[]Rank{rank(0, 20, never), edit(rank(1, 20, always), func(r *Rank) { r.Host = "b" })}, false},
	} {
		v := Judge(Job{World: c.ranks[len(c.ranks)-1].Rank + 1, Ranks: c.ranks})
		if v.Hung || strings.Contains(v.Sentence, names) != c.named || strings.Contains(v.Sentence, "came last") != c.named {
			t.Errorf("%s: %s", name, v.Sentence)
		}
	}
}

// TestLastOf: seconds between ranks are more nanoseconds than an int has room for on a machine of 32 bits.
func TestLastOf(t *testing.T) {
	t.Parallel()
	if rank, by := lastOf([]map[int]int64{{0: 0, 1: int64(3 * time.Second), 2: 1}}); rank != 1 || by != 3*time.Second-1 {
		t.Errorf("rank %d by %s", rank, by)
	}
}
