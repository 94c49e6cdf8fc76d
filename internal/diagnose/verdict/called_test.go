// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

var (
	goCall      = stacks.Frame{Func: module + "/rpc.Call", File: module + "/rpc/call.go", Line: 9}
	goMain      = stacks.Frame{Func: "main.main", File: "/home/u/main.go", Line: 2}
	goHandler   = stacks.Frame{Func: "main.load", File: "/home/u/load.go", Line: 12}
	rpcInternal = "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"
	goServer    = stacks.Frame{Func: module + "/internal/rpc/rpcserver.(*Server).runCall", File: module + "/internal/rpc/rpcserver/run.go", Line: 1}
)

// worker is a Go rank that is a worker of RPC. Its handler, if it has one, is another goroutine than the program's.
func worker(rank int, name string, calls []Call, main []stacks.Frame, handler ...stacks.Frame) Rank {
	threads := []stacks.Thread{{ID: 1, State: "S", Kernel: "select", Frames: main}}
	if len(handler) > 0 {
		threads = append(threads, stacks.Thread{ID: 40, State: "S", Kernel: "chan receive", Frames: append(handler, goServer)})
	}
	return Rank{Rank: rank, State: "S", Threads: threads, Main: MainGoroutine(threads), Worker: &Worker{Name: name, Calls: calls}}
}

func openTo(to string, rank int, age time.Duration) []Call {
	return []Call{{Op: "call", Func: to + ".load", To: to, Rank: rank, Age: age}}
}

// TestCalled: who has to answer a call that a Go worker waits for is named, with what it does instead.
func TestCalled(t *testing.T) {
	t.Parallel()
	idle := []stacks.Frame{{Func: module + "/rpc.(*Agent).Shutdown", File: module + "/rpc/shutdown.go"}, goMain}
	waits := []stacks.Frame{goCall, goMain}
	for name, c := range map[string]struct {
		ranks []Rank
		want  string
	}{
		"a handler stands still": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits), worker(1, "b", nil, idle, goHandler)},
			"Rank 1 (worker b) has not answered b.load for 12 s; its goroutine 40 is in load (load.go:12), in chan receive; rank 0 waits for the call of b.load at worker b (main.go:2).",
		},
		"through another worker": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits), worker(1, "b", openTo("c", 2, 11*time.Second), idle, goCall, goHandler), worker(2, "c", nil, idle, goHandler)},
			"Rank 2 (worker c) has not answered c.load for 12 s; its goroutine 40 is in load (load.go:12), in chan receive; rank 0 waits for the call of b.load at worker b (main.go:2), rank 1 waits for the call of c.load at worker c (load.go:12).",
		},
		"a circle": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits, goCall, goHandler), worker(1, "b", openTo("a", 0, 12*time.Second), waits, goCall, goHandler)},
			"Rank 0 waits for the call of b.load at worker b (main.go:2), rank 1 waits for the call of a.load at worker a (load.go:12) for 12 s: a cycle.",
		},
		"no handler": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits), worker(1, "b", nil, []stacks.Frame{goHandler, goMain})},
			"Rank 1 (worker b) has not answered b.load for 12 s; it runs no function for another worker, and is in load (load.go:12); rank 0 waits for the call of b.load at worker b (main.go:2).",
		},
		"through the caller": {
			[]Rank{worker(0, "a", slices.Concat(openTo("b", 1, 12*time.Second), openTo("c", 2, 10*time.Second)), waits, goCall, goHandler), worker(1, "b", openTo("a", 0, 11*time.Second), idle, goCall, goHandler), worker(2, "c", nil, idle, goHandler)},
			"Rank 2 (worker c) has not answered c.load for 12 s; its goroutine 40 is in load (load.go:12), in chan receive; rank 0 waits for the call of b.load at worker b (main.go:2), rank 1 waits for the call of a.load at worker a (load.go:12), rank 0 waits for the call of c.load at worker c (load.go:12).",
		},
		"a worker of PyTorch": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits), inOther(at(1, "main", 33), stacks.Frame{Func: "load", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"})},
			"Rank 1 (worker b) has not answered b.load for 12 s; its thread 777 is in load (train.py:12), reading from a pipe; rank 0 waits for the call of b.load at worker b (main.go:2).",
		},
	} {
		if got := Judge(Job{World: len(c.ranks), Ranks: c.ranks}); got.Sentence != c.want || !got.Hung {
			t.Errorf("%s:\n%s\nwant\n%s", name, got.Sentence, c.want)
		}
	}
}

// TestCalledInDoubt: where a worker may be at work, or another one may have to answer, nothing is said for certain.
func TestCalledInDoubt(t *testing.T) {
	t.Parallel()
	idle := []stacks.Frame{{Func: module + "/rpc.(*Agent).Shutdown", File: module + "/rpc/shutdown.go"}, goMain}
	waits := []stacks.Frame{goCall, goMain}
	caller := func(calls ...[]Call) Rank { return worker(0, "a", slices.Concat(calls...), waits) }
	toB, toC := openTo("b", 1, 12*time.Second), openTo("c", 2, 11*time.Second)
	served := func(r Rank) Rank {
		return inOther(r, stacks.Frame{Func: "load", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: rpcInternal})
	}
	runs := func(r Rank) Rank {
		return edit(r, func(r *Rank) { r.Threads[1].State, r.Threads[1].Kernel = "R", "" })
	}
	inShutdown := func(rank int) Rank {
		return with(rank, stacks.Frame{Func: "shutdown", File: rpcAPI}, stacks.Frame{Func: "main", File: script, Line: 40})
	}
	for name, c := range map[string]struct {
		ranks    []Rank
		want     string
		culprits []int
	}{
		"a handler that runs": {
			[]Rank{caller(toB), runs(worker(1, "b", nil, idle, goHandler))},
			"Perhaps not hung: rank 1 is at work for another worker: its goroutine 40 is in load (load.go:12); rank 0 waits in call of b.load at worker b (main.go:2).",
			[]int{1},
		},
		"a handler of PyTorch that runs": {
			[]Rank{caller(toB), runs(served(inShutdown(1)))},
			"Perhaps not hung: rank 1 is at work for another worker: its thread 777 is in load (train.py:12); rank 0 waits in call of b.load at worker b (main.go:2).",
			[]int{1},
		},
		"a handler that moves": {
			[]Rank{caller(toB), edit(worker(1, "b", nil, idle, goHandler), func(r *Rank) { r.Threads[1].Moving = true })},
			"Perhaps not hung: rank 1 is at work for another worker: its goroutine 40 is in load (load.go:12); rank 0 waits in call of b.load at worker b (main.go:2).",
			[]int{1},
		},
		"workers of PyTorch alone": {
			[]Rank{with(0, stacks.Frame{Func: "rpc_sync", File: rpcAPI}, stacks.Frame{Func: "main", File: script, Line: 33}), runs(served(inShutdown(1)))},
			"Perhaps not hung: rank 1 is at work for another worker: its thread 777 is in load (train.py:12); rank 0 waits in rpc_sync (train.py:33).",
			[]int{1},
		},
		"calls to different workers": {
			[]Rank{caller(toB, toC), worker(1, "b", nil, idle, goHandler), worker(2, "c", nil, idle, goHandler)},
			"Perhaps not hung: rank 1 (worker b) has not answered b.load for 12 s; its goroutine 40 is in load (load.go:12), in chan receive; rank 0 waits for the call of b.load at worker b (main.go:2); rank 0 also waits for the call of c.load at worker c.",
			[]int{1},
		},
		"a call to another worker just now": {
			[]Rank{caller(toB, openTo("c", 2, time.Millisecond)), worker(1, "b", nil, idle, goHandler), worker(2, "c", nil, idle)},
			"Perhaps not hung: rank 1 (worker b) has not answered b.load for 12 s; its goroutine 40 is in load (load.go:12), in chan receive; rank 0 waits for the call of b.load at worker b (main.go:2); rank 0 also waits for the call of c.load at worker c.",
			[]int{1},
		},
		"a rank that computes": {
			[]Rank{caller(toB), worker(1, "b", nil, idle, goHandler), edit(worker(2, "c", nil, []stacks.Frame{goHandler, goMain}), func(r *Rank) { r.Moved = true })},
			"Perhaps not hung: rank 1 (worker b) has not answered b.load for 12 s; its goroutine 40 is in load (load.go:12), in chan receive; rank 0 waits for the call of b.load at worker b (main.go:2).",
			[]int{1},
		},
		"seen once": {
			[]Rank{caller(toB), edit(worker(1, "b", nil, idle, goHandler), func(r *Rank) { r.Once = true })},
			"Perhaps not hung: rank 1 (worker b) has not answered b.load for 12 s; its goroutine 40 is in load (load.go:12), in chan receive; rank 0 waits for the call of b.load at worker b (main.go:2).",
			[]int{1},
		},
		"on another host": {
			[]Rank{caller(toB)},
			"Perhaps not hung: worker b (number 1) has not answered for 12 s, and was not found: rank 0 waits for the call of b.load at worker b (main.go:2).", nil,
		},
		"numbered by the program": {
			[]Rank{caller(toB), served(at(1, "main", 33)), served(at(2, "main", 33))},
			"Perhaps not hung: worker b (number 1) has not answered for 12 s, and its rank is not known: rank 0 waits for the call of b.load at worker b (main.go:2).", nil,
		},
	} {
		got := Judge(Job{World: len(c.ranks), Ranks: c.ranks})
		if got.Sentence != c.want || got.Hung || !got.Still || !slices.Equal(got.Culprits, c.culprits) {
			t.Errorf("%s: hung %v, culprits %v:\n%s\nwant\n%s", name, got.Hung, got.Culprits, got.Sentence, c.want)
		}
	}
}

// TestShutdownOfServers: a worker that serves is in its shutdown, and one that computes comes to it later.
func TestShutdownOfServers(t *testing.T) {
	t.Parallel()
	server := worker(0, "ps", nil, []stacks.Frame{{Func: module + "/rpc.(*Agent).Shutdown", File: module + "/rpc/shutdown.go"}, goMain})
	trainer := func(change func(*Rank)) Rank {
		return edit(worker(1, "trainer", nil, []stacks.Frame{goHandler, goMain}), change)
	}
	for name, c := range map[string]struct {
		trainer Rank
		hung    bool
	}{
		"it computes":              {trainer(func(r *Rank) { r.Moved = true }), false},
		"it stands still":          {trainer(func(*Rank) {}), false},
		"it stands still for long": {trainer(func(r *Rank) { r.Idle = 2 * time.Minute }), true},
	} {
		got := Judge(Job{World: 2, Ranks: []Rank{server, c.trainer}})
		if begin := strings.HasPrefix(got.Sentence, perhaps); got.Hung != c.hung || begin == c.hung || !strings.Contains(got.Sentence, "ank 1 has not called rpc.Shutdown (main.go:2); it is in load (load.go:12)") {
			t.Errorf("%s: hung %v: %s", name, got.Hung, got.Sentence)
		}
	}
}

// TestCalledJustNow: a call that was sent a moment ago blames no rank.
func TestCalledJustNow(t *testing.T) {
	t.Parallel()
	c := convene(Job{World: 2, Ranks: []Rank{
		worker(0, "a", openTo("b", 1, time.Millisecond), []stacks.Frame{goCall, goMain}), worker(1, "b", nil, []stacks.Frame{goHandler, goMain}),
	}})
	if v, found := c.called(); found {
		t.Error(v.Sentence)
	}
}
