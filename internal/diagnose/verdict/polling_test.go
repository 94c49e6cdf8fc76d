// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// TestPolling: ranks that ask the store for a key again and again, whose answer never changes, are found though they move.
func TestPolling(t *testing.T) {
	t.Parallel()
	poll := func(rank, line int) Rank {
		return edit(saying(at(rank, "my_barrier", line), "while store.add(key, 0) < n:"), func(r *Rank) { r.Moved, r.Loops, r.Sleeps, r.State = true, true, true, "R" })
	}
	sleeps := func(r *Rank) { r.Line, r.Main.Kernel = "pause(0.1)", "hrtimer_nanosleep" }
	does := func(line string) func(*Rank) { return func(r *Rank) { r.Line = line } }
	asks := func(key string, ranks ...int) (all []Wait) {
		for _, n := range ranks {
			all = append(all, Wait{Key: key, Rank: n, Age: 4 * time.Second, Asks: 80, Answer: "2"})
		}
		return all
	}
	moved := func(r *Rank) { r.Moved = true }
	thread := stacks.Frame{Func: "watch", File: script, Line: 70}
	wantSentences(t, map[string]sentence{
		"all": {
			Job{World: 2, Ranks: []Rank{poll(0, 11), poll(1, 12)}, Polls: asks("/epoch1", 0, 1)},
			"Ranks 0 and 1 poll the store for the key /epoch1 (always 2), in my_barrier (train.py:11) for 4 s: no rank changes it.",
		},
		"one, and another in a collective": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), poll(1, 12)}, Polls: asks("/epoch1", 1)},
			"Rank 1 has not reached all_reduce (train.py:27); it is in my_barrier (train.py:12), polling the store for the key /epoch1 (always 2); rank 0 waits.",
		},
		"one, while another is at work": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "load", 30), moved), poll(1, 12)}, Polls: asks("/epoch1", 1)},
			"Not hung: rank 0 is at work, in load (train.py:30), and no rank waits in torch.distributed.",
		},
		"one that has left the function": {
			Job{World: 2, Ranks: []Rank{poll(0, 11), edit(poll(1, 12), func(r *Rank) { r.Loops = false })}, Polls: asks("/epoch1", 0, 1)},
			"Not hung: rank 1 is at work, in my_barrier (train.py:12), and no rank waits in torch.distributed.",
		},
		"a thread of PyTorch": {
			Job{World: 1, Ranks: []Rank{poll(0, 11)}, Polls: asks("/default_pg/0//exception_dump", 0)},
			"Not hung: rank 0 is at work, in my_barrier (train.py:11), and no rank waits in torch.distributed.",
		},
		"between two questions": {
			Job{World: 1, Ranks: []Rank{edit(poll(0, 11), sleeps)}, Polls: asks("/epoch1", 0)},
			"Rank 0 polls the store for the key /epoch1 (always 2), in my_barrier (train.py:11) for 4 s: no rank changes it.",
		},
		"reading the answer": {
			Job{World: 1, Ranks: []Rank{edit(poll(0, 11), func(r *Rank) { r.Line, r.Object = "", "10.0.0.1:29500" })}, Polls: asks("/epoch1", 0), Store: "10.0.0.1:29500"},
			"Rank 0 polls the store for the key /epoch1 (always 2), in my_barrier (train.py:11) for 4 s: no rank changes it.",
		},
		"a step of a training loop": {
			Job{World: 1, Ranks: []Rank{edit(poll(0, 11), does("loss = model(x).sum()"))}, Polls: asks("/stop", 0)},
			"Not hung: rank 0 is at work, in my_barrier (train.py:11), and no rank waits in torch.distributed.",
		},
		"a step that takes its data from a queue": {
			Job{World: 1, Ranks: []Rank{edit(poll(0, 11), does("batch = queue.get()"))}, Polls: asks("/stop", 0)},
			"Not hung: rank 0 is at work, in my_barrier (train.py:11), and no rank waits in torch.distributed.",
		},
		"a step that reads from another host": {
			Job{World: 1, Ranks: []Rank{edit(poll(0, 11), func(r *Rank) { r.Line, r.Object = "batch = feature_store.get(n)", "10.0.0.5:443" })}, Polls: asks("/stop", 0), Store: "10.0.0.1:29500"},
			"Not hung: rank 0 is at work, in my_barrier (train.py:11), and no rank waits in torch.distributed.",
		},
		"the same question of one twice": {
			Job{World: 1, Store: "10.0.0.1:29500", Ranks: []Rank{edit(at(0, "train", 11), func(r *Rank) { r.Main.Kernel, r.Object, r.Idle = "wait_woken", "10.0.0.1:29500", time.Millisecond })}},
			"Perhaps not hung: no rank waits in torch.distributed; rank 0 is in train (train.py:11), reading from the store.",
		},
		"a question of a training loop that computes": {
			Job{World: 1, Ranks: []Rank{edit(poll(0, 11), func(r *Rank) { r.Sleeps = false })}, Polls: asks("/stop", 0)},
			"Not hung: rank 0 is at work, in my_barrier (train.py:11), and no rank waits in torch.distributed.",
		},
		"a thread of the program": {
			Job{World: 1, Ranks: []Rank{inOther(edit(poll(0, 11), sleeps), thread)}, Polls: asks("/stop", 0)},
			"Not hung: rank 0 is at work, in my_barrier (train.py:11), and no rank waits in torch.distributed.",
		},
		"the main thread beside a thread of the program": {
			Job{World: 1, Ranks: []Rank{inOther(poll(0, 11), thread)}, Polls: asks("/epoch1", 0)},
			"Rank 0 polls the store for the key /epoch1 (always 2), in my_barrier (train.py:11) for 4 s: no rank changes it.",
		},
	})
	line := func(n int) []string {
		return Judge(Job{World: 1, Ranks: []Rank{poll(0, n)}, Polls: asks("/epoch1", 0)}).Places
	}
	if a, b := line(11), line(12); a[0] != b[0] {
		t.Errorf("a rank that asks again and again is at %q and at %q", a, b)
	}
}

func TestLoops(t *testing.T) {
	t.Parallel()
	stack := func(frames ...stacks.Frame) *stacks.Thread { return &stacks.Thread{Frames: frames} }
	main := stacks.Frame{Func: "<module>", File: script, Line: 99}
	at11, at12 := stacks.Frame{Func: "my_barrier", File: script, Line: 11}, stacks.Frame{Func: "my_barrier", File: script, Line: 12}
	lib := stacks.Frame{Func: "wait", File: "/usr/lib/python3.11/threading.py", Line: 3}
	forward := stacks.Frame{Func: "Module.forward", File: "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", Line: 3}
	const ask, sleep, step = "if store.check([key]):", "time.sleep(1)", "loss = model(x)"
	for name, c := range map[string]struct {
		a, b *stacks.Thread
		line string
		want bool
	}{
		"the same line":         {stack(at11, main), stack(at11, main), ask, true},
		"another line":          {stack(at11, main), stack(at12, main), sleep, true},
		"in a sleep of C":       {&stacks.Thread{Frames: []stacks.Frame{at11, main}, Kernel: "hrtimer_nanosleep"}, stack(at12, main), "pause(1)", true},
		"in a wait":             {stack(lib, at11, main), stack(at12, main), "event.wait(1)", true},
		"at work at first":      {stack(at11, main), stack(at12, main), step, false},
		"a line not known":      {stack(at11, main), stack(at12, main), "", false},
		"in a library at first": {stack(forward, at11, main), stack(at12, main), ask, false},
		"in a library then":     {stack(at11, main), stack(forward, at12, main), ask, false},
		"called from elsewhere": {stack(at11, main), stack(at11, stacks.Frame{Func: "<module>", File: script, Line: 98}), ask, false},
		"another function":      {stack(at11, main), stack(stacks.Frame{Func: "load", File: script, Line: 11}, main), ask, false},
		"no program":            {stack(lib), stack(lib), ask, false},
		"nothing":               {nil, stack(at11), ask, false},
	} {
		if got := Loops(c.a, c.b, c.line); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
