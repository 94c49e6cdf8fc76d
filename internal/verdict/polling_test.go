// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/pystack"
)

// TestPolling: ranks that ask the store for a key again and again, whose answer never changes, are found though they move.
func TestPolling(t *testing.T) {
	t.Parallel()
	poll := func(rank, line int) Rank {
		return edit(at(rank, "my_barrier", line), func(r *Rank) { r.Moved, r.Loops, r.State = true, true, "R" })
	}
	asks := func(key string, ranks ...int) (all []Wait) {
		for _, n := range ranks {
			all = append(all, Wait{Key: key, Rank: n, Age: 4 * time.Second, Asks: 80, Answer: "2"})
		}
		return all
	}
	moved := func(r *Rank) { r.Moved = true }
	thread := pystack.Frame{Func: "watch", File: script, Line: 70}
	wantSentences(t, map[string]sentence{
		"all": {
			Job{World: 2, Ranks: []Rank{poll(0, 11), poll(1, 12)}, Polls: asks("/epoch1", 0, 1)},
			"Ranks 0 and 1 ask the store for the key /epoch1 again and again, in my_barrier (train.py:11) for 4 s, which is always 2: nobody changes it.",
		},
		"one, and another in a collective": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), poll(1, 12)}, Polls: asks("/epoch1", 1)},
			"Rank 1 has not reached all_reduce (train.py:27); it is in my_barrier (train.py:12), asking the store for the key /epoch1 again and again, which is always 2; rank 0 waits.",
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
		"a thread of the program": {
			Job{World: 1, Ranks: []Rank{inOther(poll(0, 11), thread)}, Polls: asks("/stop", 0)},
			"Not hung: rank 0 is at work, in my_barrier (train.py:11), and no rank waits in torch.distributed.",
		},
		"the main thread beside a thread of the program": {
			Job{World: 1, Ranks: []Rank{inOther(saying(poll(0, 11), "while store.add(key, 0) < n:"), thread)}, Polls: asks("/epoch1", 0)},
			"Rank 0 asks the store for the key /epoch1 again and again, in my_barrier (train.py:11) for 4 s, which is always 2: nobody changes it.",
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
	stack := func(frames ...pystack.Frame) *pystack.Thread { return &pystack.Thread{Frames: frames} }
	main := pystack.Frame{Func: "<module>", File: script, Line: 99}
	at11, at12 := pystack.Frame{Func: "my_barrier", File: script, Line: 11}, pystack.Frame{Func: "my_barrier", File: script, Line: 12}
	lib := pystack.Frame{Func: "wait", File: "/usr/lib/python3.11/threading.py", Line: 3}
	for name, c := range map[string]struct {
		a, b *pystack.Thread
		want bool
	}{
		"the same line":         {stack(at11, main), stack(at11, main), true},
		"another line":          {stack(at11, main), stack(at12, main), true},
		"in a library":          {stack(lib, at11, main), stack(at12, main), true},
		"called from elsewhere": {stack(at11, main), stack(at11, pystack.Frame{Func: "<module>", File: script, Line: 98}), false},
		"another function":      {stack(at11, main), stack(pystack.Frame{Func: "load", File: script, Line: 11}, main), false},
		"no program":            {stack(lib), stack(lib), false},
		"nothing":               {nil, stack(at11), false},
	} {
		if got := Loops(c.a, c.b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
