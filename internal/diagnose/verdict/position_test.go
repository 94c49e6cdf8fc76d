// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// TestMainGoroutine: a goroutine that cohort has started is none of the program, whatever it was started with.
func TestMainGoroutine(t *testing.T) {
	t.Parallel()
	started := stacks.Frame{Func: "sync.(*WaitGroup).Go.func1", File: "/usr/local/go/src/sync/waitgroup.go", Line: 258}
	program := stacks.Frame{Func: "main.step", File: "/home/u/main.go", Line: 9}
	calls := stacks.Frame{Func: module + "/group.(*Work).Wait", File: module + "/group/work.go", Line: 7}
	first := stacks.Thread{ID: 1, Frames: []stacks.Frame{
		{Func: "time.Sleep", File: "/usr/local/go/src/runtime/time.go"},
		program,
		{Func: "runtime.main", File: "/usr/local/go/src/runtime/proc.go"},
	}}
	for name, c := range map[string]struct {
		frames []stacks.Frame
		main   int
	}{
		"of cohort": {[]stacks.Frame{calls, started}, 1},
		"of cohort, as a dependency": {[]stacks.Frame{{
			Func: calls.Func,
			File: "/home/u/go/pkg/mod/" + module + "@v0.1.0/group/work.go",
		}, started}, 1},
		"of cohort, by its own name": {[]stacks.Frame{calls}, 1},
		"of the program":             {[]stacks.Frame{calls, program, started}, 7},
		"a callback of cohort": {[]stacks.Frame{
			calls, program,
			{Func: module + "/rpc.serve", File: module + "/rpc/serve.go"},
			started,
		}, 1},
		"of a library that waits": {[]stacks.Frame{
			calls, program,
			{
				Func: "golang.org/x/sync/errgroup.(*Group).Go.func1",
				File: "/home/u/go/pkg/mod/golang.org/x/sync@v0.1.0/errgroup/errgroup.go",
			},
		}, 7},
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
		"it stands still": {
			[]stacks.Thread{of(1, "S", goHandler, goMain)},
			[]stacks.Thread{of(1, "S", goHandler, goMain)},
			false,
		},
		"it runs": {
			[]stacks.Thread{of(1, "S", goHandler, goMain)},
			[]stacks.Thread{of(1, "R", goHandler, goMain)},
			true,
		},
		"it is elsewhere": {[]stacks.Thread{of(1, "S", goHandler, goMain)}, []stacks.Thread{of(1, "S", goMain)}, true},
		"another of the program": {
			[]stacks.Thread{of(1, "S", joins, goMain), of(9, "S", goHandler)},
			[]stacks.Thread{of(1, "S", joins, goMain), of(9, "R", goHandler)},
			true,
		},
		"another of Go": {
			[]stacks.Thread{of(1, "S", joins, goMain)},
			[]stacks.Thread{of(1, "S", joins, goMain), of(9, "R", accepts)},
			false,
		},
		"it waits in cohort": {
			[]stacks.Thread{of(1, "S", goCall, goMain)},
			[]stacks.Thread{of(1, "R", spins, goCall, goMain)},
			false,
		},
		"it waits beside another": {
			[]stacks.Thread{of(1, "S", goCall, goMain)},
			[]stacks.Thread{of(1, "S", goCall, goMain), of(9, "R", goHandler)},
			false,
		},
		"it waits at another place": {
			[]stacks.Thread{of(1, "S", goCall, goMain)},
			[]stacks.Thread{of(1, "S", goCall, goHandler, goMain)},
			true,
		},
		"it has come to wait":        {[]stacks.Thread{of(1, "S", goHandler, goMain)}, []stacks.Thread{of(1, "S", goCall, goMain)}, true},
		"nothing of the program ran": {nil, nil, false},
	} {
		if got := GoMoved(c.before, c.now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
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
		"the same line": {stack(at11, main), stack(at11, main), ask, true},
		"another line":  {stack(at11, main), stack(at12, main), sleep, true},
		"in a sleep of C": {
			&stacks.Thread{Frames: []stacks.Frame{at11, main}, Kernel: "hrtimer_nanosleep"},
			stack(at12, main), "pause(1)", true,
		},
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

// TestGroupOf: the group of a call is told where its whole text is known, and not otherwise.
func TestGroupOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"dist.all_reduce(x)":                                          defaultGroup,
		"dist.all_reduce(x, group=None)":                              defaultGroup,
		"dist.all_reduce(x, group=dist.group.WORLD)":                  defaultGroup,
		"w = dist.all_reduce(x, op=SUM, group=self.tp)":               "self.tp",
		"dist.all_reduce(f(x, (1, 2)), SUM, tp)":                      "tp",
		`dist.all_reduce(d["a, b)"], SUM, groups[dist.get_rank()])`:   "groups[dist.get_rank()]",
		"dist.all_reduce(x, dist.ReduceOp.SUM, async_op=False)":       defaultGroup,
		"dist.all_reduce(*args)":                                      "",
		"dist.all_reduce(x, **options)":                               "",
		"dist.all_reduce(x,":                                          "",
		"average(x)":                                                  "",
		"my_all_reduce(x)":                                            "",
		"if dist.all_reduce(x, SUM, tp) and dist.all_reduce(x): pass": "",
	} {
		if got, known := groupOf("all_reduce", text); got != want || known != (want != "") {
			t.Errorf("%s: %q, %v, want %q", text, got, known, want)
		}
	}
	if got, _ := groupOf("barrier", "dist.barrier(tp)"); got != "tp" {
		t.Errorf("barrier: %q", got)
	}
}

// TestTensorOf: what must be the same on all ranks is compared, and nothing else.
func TestTensorOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ op, args, want string }{
		{"all_reduce", "tensor=float32[4,2] async_op=false", "float32[4,2]"},
		{"all_gather_into_tensor", "output_tensor=float32[8] input_tensor=float32[4]", "float32[4]"},
		{"all_to_all_single", "output=float32[8] input=float32[4]", ""},
		{"broadcast", "src=0", ""},
	} {
		if got := tensorOf(&stacks.Frame{Func: c.op, Args: c.args}); got != c.want {
			t.Errorf("%s %s: %q", c.op, c.args, got)
		}
	}
}

// TestWith: the evidence of a failure has the sizes of the tensors that ranks pass.
func TestWith(t *testing.T) {
	t.Parallel()
	for want, frames := range map[string][]stacks.Frame{
		"all_reduce (train.py:27) with 8 elements of float32": in(0, "all_reduce", "tensor=float32[4,2]", 27).Main.Frames,
		"all_reduce (train.py:27) with 1 element of int64":    in(0, "all_reduce", "tensor=int64[1]", 27).Main.Frames,
		"barrier (train.py:27)":                               in(0, "barrier", "", 27).Main.Frames,
		"":                                                    nil,
	} {
		if got := With(frames); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
