// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

func goRank(rank int, open *torchdump.Entry, done int, frames ...stacks.Frame) Rank {
	d := &torchdump.Dump{}
	for i := range done {
		d.Entries = append(d.Entries, torchdump.Entry{Group: "0", Desc: "default_pg", Backend: "cohort", Op: "all_reduce", Seq: i + 1, Peer: -1})
	}
	if open != nil {
		d.Entries = append(d.Entries, *open)
	}
	threads := []stacks.Thread{
		{ID: 3, State: "S", Frames: []stacks.Frame{{Func: "internal/poll.runtime_pollWait", File: "runtime/netpoll.go", Line: 3}, {Func: module + "/internal/group/shm.(*Mesh).watch", File: module + "/internal/group/shm/watch.go", Line: 9}}},
		{ID: 1, State: "S", Frames: frames},
	}
	return Rank{Rank: rank, State: "S", Threads: threads, Main: MainGoroutine(threads), Dump: d}
}

// TestGoRanks: a job of Go ranks is judged by their flight recorders and goroutines.
func TestGoRanks(t *testing.T) {
	t.Parallel()
	waiting := []stacks.Frame{
		{Func: "runtime.gopark", File: "/usr/local/go/src/runtime/proc.go", Line: 1},
		{Func: module + "/group.(*Work).Wait", File: module + "/group/work.go", Line: 7},
		{Func: module + "/group.AllReduceSlice", File: module + "/group/slice.go", Line: 8},
		{Func: "example.org/trainer/step.(*Step).Run.func1", File: "/home/u/trainer/step/step.go", Line: 53},
		{Func: "main.main", File: "/home/u/main.go", Line: 2},
	}
	sleeping := []stacks.Frame{
		{Func: "time.Sleep", File: "/usr/local/go/src/runtime/time.go", Line: 1},
		{Func: "example.org/trainer/data.load", File: "/home/u/trainer/data/load.go", Line: 12},
		{Func: "main.main", File: "/home/u/main.go", Line: 2},
	}
	entry := func(op string, seq int) *torchdump.Entry {
		return &torchdump.Entry{Group: "0", Desc: "default_pg", Backend: "cohort", Op: op, Seq: seq, Open: true, Peer: -1, Created: time.Unix(1000, 0).UnixNano()}
	}
	recv := &torchdump.Entry{Group: "0", Op: "recv", P2P: true, Open: true, Peer: 1, Backend: "cohort"}
	for name, c := range map[string]struct {
		job  Job
		want string
	}{
		"late": {
			Job{World: 3, Taken: time.Unix(1012, 0), Ranks: []Rank{goRank(0, entry("all_reduce", 3), 2, waiting...), goRank(1, nil, 2, sleeping...), goRank(2, entry("all_reduce", 3), 2, waiting...)}},
			"Rank 1 has not reached all_reduce number 3 of default_pg; it is in load (load.go:12); ranks 0 and 2 wait for 12 s.",
		},
		"other call": {
			Job{World: 2, Ranks: []Rank{goRank(0, entry("all_reduce", 3), 2, waiting...), goRank(1, entry("broadcast", 3), 2, waiting...)}},
			"Rank 0 calls all_reduce (step.go:53), rank 1 calls broadcast (step.go:53) as number 3 of default_pg.",
		},
		"message": {
			Job{World: 2, Ranks: []Rank{goRank(0, recv, 2, waiting...), goRank(1, nil, 2, sleeping...)}},
			"Rank 0 waits for a message from rank 1 (step.go:53), which is in load (load.go:12) and sends none.",
		},
		"beside PyTorch": {
			Job{World: 2, Ranks: []Rank{goRank(0, entry("all_reduce", 3), 2, waiting...), {Rank: 1, State: "S", Main: &stacks.Thread{State: "S", Frames: []stacks.Frame{{Func: "load_batch", File: "/home/u/train.py", Line: 12}}}}}},
			"Rank 1 has not reached all_reduce number 3 of default_pg; it is in load_batch (train.py:12); rank 0 waits.",
		},
		"several beside PyTorch": {
			Job{World: 3, Ranks: []Rank{goRank(0, entry("all_reduce", 3), 2, waiting...), goRank(1, entry("all_reduce", 3), 2, waiting...), {Rank: 2, State: "S", Main: &stacks.Thread{State: "S", Frames: []stacks.Frame{{Func: "load_batch", File: "/home/u/train.py", Line: 12}}}}}},
			"Rank 2 has not reached all_reduce number 3 of default_pg; it is in load_batch (train.py:12); ranks 0 and 1 wait.",
		},
	} {
		if got := Judge(c.job); got.Sentence != c.want || !got.Hung {
			t.Errorf("%s: %q, want %q", name, got.Sentence, c.want)
		}
	}
}

// TestMainGoroutine: a goroutine that cohort has started is none of the program, whatever it was started with.
func TestMainGoroutine(t *testing.T) {
	t.Parallel()
	started := stacks.Frame{Func: "sync.(*WaitGroup).Go.func1", File: "/usr/local/go/src/sync/waitgroup.go", Line: 258}
	program := stacks.Frame{Func: "main.step", File: "/home/u/main.go", Line: 9}
	calls := stacks.Frame{Func: module + "/group.(*Work).Wait", File: module + "/group/work.go", Line: 7}
	first := stacks.Thread{ID: 1, Frames: []stacks.Frame{{Func: "time.Sleep", File: "/usr/local/go/src/runtime/time.go"}, program, {Func: "runtime.main", File: "/usr/local/go/src/runtime/proc.go"}}}
	for name, c := range map[string]struct {
		frames []stacks.Frame
		main   int
	}{
		"of cohort":                  {[]stacks.Frame{calls, started}, 1},
		"of cohort, as a dependency": {[]stacks.Frame{{Func: calls.Func, File: "/home/u/go/pkg/mod/" + module + "@v0.1.0/group/work.go"}, started}, 1},
		"of cohort, by its own name": {[]stacks.Frame{calls}, 1},
		"of the program":             {[]stacks.Frame{calls, program, started}, 7},
		"a callback of cohort":       {[]stacks.Frame{calls, program, {Func: module + "/rpc.serve", File: module + "/rpc/serve.go"}, started}, 1},
		"of a library that waits":    {[]stacks.Frame{calls, program, {Func: "golang.org/x/sync/errgroup.(*Group).Go.func1", File: "/home/u/go/pkg/mod/golang.org/x/sync@v0.1.0/errgroup/errgroup.go"}}, 7},
	} {
		other := stacks.Thread{ID: 7, Frames: c.frames}
		for _, all := range [][]stacks.Thread{{other, first}, {first, other}} {
			if got := MainGoroutine(all); got == nil || got.ID != c.main {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
}

// TestGoMoved: what a program does between two readings counts, and what a goroutine does in cohort while it waits there does not.
func TestGoMoved(t *testing.T) {
	t.Parallel()
	of := func(id int, state string, frames ...stacks.Frame) stacks.Thread {
		return stacks.Thread{ID: id, State: state, Frames: frames}
	}
	spins := stacks.Frame{Func: module + "/internal/group/shm.spin", File: module + "/internal/group/shm/spin.go", Line: 1}
	joins := stacks.Frame{Func: "sync.(*WaitGroup).Wait", File: "/usr/local/go/src/sync/waitgroup.go"}
	accepts := stacks.Frame{Func: "net.(*netFD).accept", File: "/usr/local/go/src/net/fd_unix.go"}
	for name, c := range map[string]struct {
		before, now []stacks.Thread
		want        bool
	}{
		"it stands still":            {[]stacks.Thread{of(1, "S", goHandler, goMain)}, []stacks.Thread{of(1, "S", goHandler, goMain)}, false},
		"it runs":                    {[]stacks.Thread{of(1, "S", goHandler, goMain)}, []stacks.Thread{of(1, "R", goHandler, goMain)}, true},
		"it is elsewhere":            {[]stacks.Thread{of(1, "S", goHandler, goMain)}, []stacks.Thread{of(1, "S", goMain)}, true},
		"another of the program":     {[]stacks.Thread{of(1, "S", joins, goMain), of(9, "S", goHandler)}, []stacks.Thread{of(1, "S", joins, goMain), of(9, "R", goHandler)}, true},
		"another of Go":              {[]stacks.Thread{of(1, "S", joins, goMain)}, []stacks.Thread{of(1, "S", joins, goMain), of(9, "R", accepts)}, false},
		"it waits in cohort":         {[]stacks.Thread{of(1, "S", goCall, goMain)}, []stacks.Thread{of(1, "R", spins, goCall, goMain)}, false},
		"it waits beside another":    {[]stacks.Thread{of(1, "S", goCall, goMain)}, []stacks.Thread{of(1, "S", goCall, goMain), of(9, "R", goHandler)}, false},
		"it waits at another place":  {[]stacks.Thread{of(1, "S", goCall, goMain)}, []stacks.Thread{of(1, "S", goCall, goHandler, goMain)}, true},
		"it has come to wait":        {[]stacks.Thread{of(1, "S", goHandler, goMain)}, []stacks.Thread{of(1, "S", goCall, goMain)}, true},
		"nothing of the program ran": {nil, nil, false},
	} {
		if got := GoMoved(c.before, c.now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
