// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package hangwatch_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/hangwatch"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

const s = time.Second

// simulated is a job of two ranks in virtual time. Rank 0 is in all_reduce whenever it waits.
type simulated struct {
	// step is what the job has come to at a time: a look that sees two different ones sees ranks that move.
	step func(time.Duration) int
	// place is the line of rank 1 at a step.
	place func(step int) int
	// busy says that rank 1 computes, and unread that its stack cannot be read.
	busy, unread func(time.Duration) bool
	// gpu says that both ranks wait for GPUs, and seq how far their recorders have come; 0: there are none.
	gpu bool
	seq func(time.Duration) int
	// idle is how long the main threads have not run; nil: not known.
	idle func(rank int, now time.Duration) time.Duration
	// glance and full are how long looks take.
	glance, full time.Duration
}

const (
	script = "/home/train.py"
	c10d   = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
)

// seen is what looks at two moments tell.
func (j *simulated) seen(first, second time.Duration) verdict.Job {
	moved := j.step(first) != j.step(second)
	line := j.place(j.step(second))
	zero := verdict.Rank{
		Rank: 0, Process: verdict.Process{State: "S"},
		Stacks: verdict.Stacks{Moved: moved, Main: &stacks.Thread{ID: 1, State: "S", Kernel: "futex_wait", Frames: []stacks.Frame{
			{Func: "all_reduce", File: c10d, Line: 1}, {Func: "main", File: script, Line: line},
		}}},
	}
	one := verdict.Rank{
		Rank: 1, Process: verdict.Process{State: "S"},
		Stacks: verdict.Stacks{Moved: moved, Main: &stacks.Thread{
			ID: 2, State: "S", Kernel: "pipe_read",
			Frames: []stacks.Frame{{Func: "load", File: script, Line: line}},
		}},
	}
	if j.gpu {
		for _, r := range []*verdict.Rank{&zero, &one} {
			r.State, r.GPU, r.Main.State, r.Main.Kernel = "R", !moved, "R", ""
			r.Main.Frames = []stacks.Frame{{Func: "main", File: script, Line: line}}
		}
	}
	if j.seq != nil && j.seq(second) > 0 {
		for _, r := range []*verdict.Rank{&zero, &one} {
			r.Dump = &torchdump.Dump{Entries: []torchdump.Entry{
				{Group: "0", Desc: "default_pg", Seq: j.seq(second), Backend: "nccl", Op: "all_reduce", Open: true},
			}}
		}
	}
	if j.idle != nil {
		zero.Idle, one.Idle = j.idle(0, second), j.idle(1, second)
	}
	if j.busy != nil && j.busy(second) {
		one.State, one.Moved = "R", true
	}
	if j.unread != nil && j.unread(second) {
		one.Main, one.Trouble = nil, "no permission"
	}
	return verdict.Job{World: 2, Ranks: []verdict.Rank{zero, one}}
}

// reportedHang is a hang that was reported at a time.
type reportedHang struct {
	at, since time.Duration
	sure      bool
}

// watched looks at a job as it is told to, until a time.
func (j *simulated) watched(timeout, until time.Duration, restart bool) []reportedHang {
	lead := max(8*s, timeout/hangwatch.SamplesPerHang)
	w := hangwatch.New(timeout, lead)
	var all []reportedHang
	var now time.Duration
	var prepared verdict.Job
	var ready time.Duration
	for order := hangwatch.Glance; now < until; {
		var seen verdict.Job
		switch order {
		case hangwatch.Collect:
			now, seen = max(now, ready), prepared
		case hangwatch.Repeat:
			seen, now = j.seen(now, now+j.full), now+j.full
		default:
			if order == hangwatch.Prepare {
				prepared, ready = j.seen(now, now+j.full), now+j.full
			}
			took := max(timeout/hangwatch.SamplesPerHang, j.glance)
			seen, now = j.seen(now, now+took), now+took
		}
		var hang *hangwatch.Hang
		if order, hang = w.Took(hangwatch.Look{At: now, Seen: seen}); hang == nil {
			continue
		}
		all = append(all, reportedHang{now, hang.Since, hang.Sure})
		if restart && hang.Sure {
			w, order = hangwatch.New(timeout, lead), hangwatch.Glance
		}
	}
	return all
}

// every is a job that comes a step further after each period.
func every(period time.Duration) func(time.Duration) int {
	return func(t time.Duration) int { return int(t / period) }
}

func stands(time.Duration) int { return 0 }

// TestScenarios: a hang is reported once, and nothing else is taken for one.
func TestScenarios(t *testing.T) {
	t.Parallel()
	between := func(from, to time.Duration) func(time.Duration) bool {
		return func(t time.Duration) bool { return t >= from && t < to }
	}
	line := func(step int) int { return step }
	sameLine := func(int) int { return 1 }
	polls := func(int, time.Duration) time.Duration { return 200 * time.Millisecond }
	for name, c := range map[string]struct {
		job     simulated
		restart bool
		want    string // of each hang when it was reported, in seconds, and whether it was sure
	}{
		"a hang":                     {job: simulated{step: stands, place: line}, want: "90 sure"},
		"a job that works":           {job: simulated{step: every(20 * s), place: line}},
		"a step as long as the time": {job: simulated{step: every(70 * s), place: line}},
		"a step that takes too long": {
			job:  simulated{step: every(200 * s), place: line},
			want: "90 sure, 290 sure, 490 sure, 690 sure, 890 sure",
		},
		"slow looks at a job that works": {job: simulated{step: every(50 * s), place: sameLine, glance: 45 * s}},
		"slow looks at a hang":           {job: simulated{step: stands, place: line, glance: 45 * s}, want: "225 sure"},
		"a rank that moves":              {job: simulated{step: stands, place: line, busy: func(time.Duration) bool { return true }}},
		"a rank that moved until now":    {job: simulated{step: stands, place: line, busy: between(0, 300*s)}, want: "380 sure"},
		"a look that fails":              {job: simulated{step: stands, place: line, unread: between(40*s, 41*s)}, want: "90 sure"},
		"looks that fail": {
			job:  simulated{step: stands, place: line, unread: between(40*s, 500*s)},
			want: "130 sure, 580 sure",
		},
		"a full look that fails": {job: simulated{step: stands, place: line, full: 3 * s, unread: between(83*s, 84*s)}, want: "110 sure"},
		"a slow full look":       {job: simulated{step: stands, place: line, full: 40 * s}, want: "120 sure"},
		"a hang that ends by itself": {
			job:  simulated{step: func(t time.Duration) int { return min(int(t/(200*s)), 1) }, place: sameLine},
			want: "90 sure, 290 sure",
		},
		"a hang that is killed, and the next attempt hangs": {
			job: simulated{step: stands, place: line}, restart: true,
			want: "90 sure, 180 sure, 270 sure, 360 sure, 450 sure, 540 sure, 630 sure, 720 sure, 810 sure",
		},
		"a job that is always found where it waits for data": {
			job:  simulated{step: stands, place: line, idle: polls},
			want: "90",
		},
		"a hang beside a rank that looks again and again": {
			job: simulated{
				step: stands, place: line,
				idle: func(rank int, now time.Duration) time.Duration { return max(s, now*time.Duration(1-rank)) },
			},
			want: "90 sure",
		},
		"ranks that look again and again, and recorders stand still": {
			job:  simulated{step: stands, place: line, seq: func(time.Duration) int { return 7 }, idle: polls},
			want: "90, 170 sure",
		},
		"ranks that look again and again, and recorders go on slowly": {
			job:  simulated{step: stands, place: line, seq: every(70 * s), idle: polls},
			want: "90",
		},
		"ranks that look again and again, and are found elsewhere for a moment": {
			job:  simulated{step: stands, place: line, idle: polls, busy: func(t time.Duration) bool { return t%(150*s) == 0 }},
			want: "90",
		},
		"a job that waits for data and then hangs": {
			job:  simulated{step: stands, place: line, idle: func(_ int, now time.Duration) time.Duration { return max(s, now-100*s) }},
			want: "90, 330 sure",
		},
		"GPUs, and nothing tells": {job: simulated{step: stands, place: line, gpu: true}, want: "90"},
		"GPUs, and recorders stand still": {job: simulated{
			step: stands, place: line, gpu: true,
			seq: func(time.Duration) int { return 7 }, full: s,
		}, want: "91 sure"},
		"GPUs, and recorders go on": {job: simulated{step: stands, place: line, gpu: true, seq: every(2 * s), full: s}},
		"GPUs, and recorders answer late": {
			job: simulated{
				step: stands, place: line, gpu: true, full: s,
				seq: func(t time.Duration) int { return min(int(t/(150*s)), 1) },
			},
			want: "91, 182 sure",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var words []string
			for _, one := range c.job.watched(80*s, 900*s, c.restart) {
				word := strconv.Itoa(int(one.at.Seconds()))
				if one.sure {
					word += " sure"
				}
				words = append(words, word)
				if one.since > one.at || one.since < 80*s {
					t.Errorf("reported at %s that nothing had moved for %s", one.at, one.since)
				}
			}
			if got := strings.Join(words, ", "); got != c.want {
				t.Errorf("reported at %s; want %s", got, c.want)
			}
		})
	}
}

// TestSimulation: jobs that stop for random times are never said to hang before they have stood still for as long as
// they should, and always soon after that.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(250) {
		r := rand.New(rand.NewPCG(seed, 11))
		timeout := time.Duration(2+r.IntN(60)) * s
		var moves []time.Duration // when the job came a step further
		end := time.Duration(0)
		for end < 6*timeout {
			end += time.Duration(r.Int64N(int64(timeout) * int64(1+r.IntN(5)) / 2))
			moves = append(moves, end)
		}
		passed := func(at time.Duration) int {
			n, _ := slices.BinarySearch(moves, at+1)
			return n
		}
		lines := 1 + r.IntN(3)
		j := simulated{step: passed, place: func(step int) int { return step % lines }, full: time.Duration(r.Int64N(int64(3 * s)))}
		all := j.watched(timeout, end, false)
		for i, one := range all {
			n := passed(one.at - j.full)
			if n > 0 && one.at-moves[n-1] < timeout || one.since < timeout || i > 0 && passed(all[i-1].at) == passed(one.at) {
				t.Fatalf("seed %d: reported at %s, and at %v before; it moved at %v", seed, one.at, all[:i], moves)
			}
		}
		for i := 1; i < len(moves); i++ {
			late := timeout + 3*timeout/hangwatch.SamplesPerHang + 3*j.full + s // when it is reported at the latest
			found := slices.ContainsFunc(all, func(one reportedHang) bool { return one.at > moves[i-1] && one.at <= moves[i-1]+late })
			if moves[i]-moves[i-1] > late && !found {
				t.Fatalf("seed %d: stood still from %s to %s with a timeout of %s, and no hang reported: %v", seed, moves[i-1],
					moves[i], timeout, all)
			}
		}
	}
}

// TestSentence: what is reported of a job that has stood still for as long as it may does not say that it perhaps does not hang.
func TestSentence(t *testing.T) {
	t.Parallel()
	reads := func(rank int, idle time.Duration) verdict.Rank {
		return verdict.Rank{
			Rank: rank, Process: verdict.Process{State: "S", Idle: idle},
			Stacks: verdict.Stacks{Main: &stacks.Thread{
				State: "S", Kernel: "pipe_read",
				Frames: []stacks.Frame{{Func: "load", File: script, Line: 9}},
			}},
		}
	}
	for name, c := range map[string]struct {
		idle time.Duration
		sure bool
		want string
	}{
		"sure": {0, true, "No rank waits in torch.distributed; ranks 0 and 1 are in load (train.py:9), reading from a pipe."},
		"it ran": {
			2 * s, false,
			"No rank waits in torch.distributed; ranks 0 and 1 are in load (train.py:9), reading from a pipe for 2 s.",
		},
	} {
		w := hangwatch.New(80*s, 10*s)
		var hang *hangwatch.Hang
		for at := 10 * s; hang == nil && at < 200*s; at += 10 * s {
			_, hang = w.Took(hangwatch.Look{At: at, Seen: verdict.Job{World: 2, Ranks: []verdict.Rank{reads(0, c.idle), reads(1, c.idle)}}})
		}
		if hang == nil || hang.Sure != c.sure || hang.Verdict.Sentence != c.want {
			t.Errorf("%s: %+v, want %q", name, hang, c.want)
		}
	}
}
