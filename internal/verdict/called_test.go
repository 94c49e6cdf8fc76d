// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/pystack"
)

var (
	goCall    = pystack.Frame{Func: module + "/rpc.Call", File: module + "/rpc/call.go", Line: 9}
	goMain    = pystack.Frame{Func: "main.main", File: "/home/u/main.go", Line: 2}
	goHandler = pystack.Frame{Func: "main.load", File: "/home/u/load.go", Line: 12}
	goServer  = pystack.Frame{Func: module + "/internal/rpcserve.(*Server).runCall", File: module + "/internal/rpcserve/run.go", Line: 1}
)

// worker is a Go rank that is a worker of RPC. Its handler, if it has one, is another goroutine than the program's.
func worker(rank int, name string, calls []Call, main []pystack.Frame, handler ...pystack.Frame) Rank {
	threads := []pystack.Thread{{ID: 1, State: "S", Kernel: "select", Frames: main}}
	if len(handler) > 0 {
		threads = append(threads, pystack.Thread{ID: 40, State: "S", Kernel: "chan receive", Frames: append(handler, goServer)})
	}
	return Rank{Rank: rank, State: "S", Threads: threads, Main: MainGoroutine(threads), Worker: &Worker{Name: name, Calls: calls}}
}

func openTo(to string, rank int, age time.Duration) []Call {
	return []Call{{Op: "call", Func: to + ".load", To: to, Rank: rank, Age: age}}
}

// TestCalled: who has to answer a call that a Go worker waits for is named, with what it does instead.
func TestCalled(t *testing.T) {
	t.Parallel()
	idle := []pystack.Frame{{Func: module + "/rpc.(*Agent).Shutdown", File: module + "/rpc/shutdown.go"}, goMain}
	waits := []pystack.Frame{goCall, goMain}
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
			"Rank 0 waits for the call of b.load at worker b (main.go:2), rank 1 waits for the call of a.load at worker a (load.go:12) for 12 s: in a circle.",
		},
		"no handler": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits), worker(1, "b", nil, []pystack.Frame{goHandler, goMain})},
			"Rank 1 (worker b) has not answered b.load for 12 s; it runs no function for another worker, and is in load (load.go:12); rank 0 waits for the call of b.load at worker b (main.go:2).",
		},
		"on another host": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits)},
			"Worker b has not answered for 12 s, and was not found: rank 0 waits for the call of b.load at worker b (main.go:2).",
		},
		"a worker of PyTorch": {
			[]Rank{worker(0, "a", openTo("b", 1, 12*time.Second), waits), inOther(at(1, "main", 33), pystack.Frame{Func: "load", File: script, Line: 12}, pystack.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"})},
			"Rank 1 (worker b) has not answered b.load for 12 s; its thread 777 is in load (train.py:12), reading from a pipe; rank 0 waits for the call of b.load at worker b (main.go:2).",
		},
	} {
		if got := Judge(Job{World: len(c.ranks), Ranks: c.ranks}); got.Sentence != c.want || !got.Hung {
			t.Errorf("%s:\n%s\nwant\n%s", name, got.Sentence, c.want)
		}
	}
}

// TestCalledJustNow: a call that was sent a moment ago blames nobody.
func TestCalledJustNow(t *testing.T) {
	t.Parallel()
	c := convene(Job{World: 2, Ranks: []Rank{
		worker(0, "a", openTo("b", 1, time.Millisecond), []pystack.Frame{goCall, goMain}), worker(1, "b", nil, []pystack.Frame{goHandler, goMain}),
	}})
	if v, found := c.called(); found {
		t.Error(v.Sentence)
	}
}
