// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// TestOrder: of two rules that both find something the one decides that says what is certain, or says more.
func TestOrder(t *testing.T) {
	t.Parallel()
	find := map[string]func(*analysis) (Verdict, bool){}
	place := map[string]int{} // of its stage
	for i, s := range stages {
		for _, r := range s.rules {
			find[r.name], place[r.name] = r.find, i
		}
	}
	waits := in(0, "all_reduce", "", 27)
	late := func() Rank { return at(1, "load", 12) }
	starts := in(0, "init_process_group", "", 5)
	open := func(r Rank, seq int) Rank { return recorded(r, nil, entry("0", "default_pg", seq, true)) }
	onGPU := func(rank int, frames ...stacks.Frame) Rank {
		return edit(with(rank, frames...), func(r *Rank) { r.State, r.GPU, r.Main.State, r.Main.Kernel = "R", true, "R", "" })
	}
	collective := stacks.Frame{Func: "barrier", File: c10d, Line: 1}
	own := stacks.Frame{Func: "step", File: script, Line: 30}
	dials := func(r Rank) Rank { return edit(r, func(r *Rank) { r.Dials = []string{"10.0.0.1:33449"} }) }
	lost := []GPUError{{Host: "b", Device: "0000:3b:00", Number: 79, Words: "it has fallen off the bus", Fatal: true, Rank: 1, Age: 40 * time.Second}}
	used := map[string]bool{}
	for _, c := range []struct {
		first, second string
		job           Job
	}{
		// What ranks were told explains why one has not come, and why the store cannot be reached.
		{"worlds", "starting", Job{World: 2, Ranks: []Rank{told(starts, 2, "a:1"), told(at(1, "load", 12), 3, "a:1")}}},
		{"worlds", "lacking", Job{World: 3, Local: true, Ranks: []Rank{told(starts, 2, "a:1"), told(in(1, "init_process_group", "", 5), 3, "a:1")}}},
		{"stores", "unreachable", Job{World: 2, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{told(starts, 2, "a:1"), told(in(1, "init_process_group", "", 5), 2, "a:2")}}},
		{"strays", "lacking", Job{World: 2, Local: true, Orphans: []Stray{{Rank: 1, PID: 5, Store: "a:2"}}, Ranks: []Rank{starts}}},
		{"numbers", "starting", Job{World: 2, Ranks: []Rank{in(0, "init_process_group", "rank=0 world_size=2", 5), in(1, "init_process_group", "rank=0 world_size=2", 5)}}},
		// A GPU that has failed explains why its rank is gone, or stands still.
		{"broken", "gone", Job{World: 2, GPUErrors: lost, Ranks: []Rank{waits, {Rank: 1, Gone: "was killed by SIGABRT"}}}},
		{"broken", "kernel", Job{World: 2, GPUErrors: lost, Ranks: []Rank{waits, edit(late(), func(r *Rank) { r.Main.State = "D" })}}},
		// A process that is gone or cannot go on explains what the records say of it.
		{"gone", "recorders", Job{World: 3, Ranks: []Rank{open(waits, 4), {Rank: 1, Gone: "was killed by SIGKILL"}, open(in(2, "all_reduce", "", 27), 4)}}},
		{"twice", "starting", Job{World: 3, Ranks: []Rank{starts, starts, at(1, "load", 12)}}},
		{"unreachable", "lacking", Job{World: 2, Local: true, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{starts}}},
		{"lacking", "same", Job{World: 3, Local: true, Ranks: []Rank{waits, in(1, "all_reduce", "", 27)}}},
		{"stopped", "recorders", Job{World: 2, Ranks: []Rank{open(waits, 4), recorded(edit(late(), func(r *Rank) { r.State = "T" }), nil, entry("0", "default_pg", 3, false))}}},
		{"frozen", "kernel", Job{World: 2, Ranks: []Rank{waits, edit(late(), func(r *Rank) { r.Main.State, r.Frozen = "D", true })}}},
		{"kernel", "missing", Job{World: 2, Ranks: []Rank{waits, edit(late(), func(r *Rank) { r.Main.State = "D" })}}},
		{"lock", "missing", Job{World: 2, Ranks: []Rank{waits, edit(late(), func(r *Rank) { r.Main.HoldsGIL = true; r.Threads = []stacks.Thread{*r.Main} })}}},
		{"dialing", "starting", Job{World: 2, Ranks: []Rank{dials(starts), late()}}},
		// What was counted has a number; a stack has a line.
		{"recorders", "missing", Job{World: 2, Ranks: []Rank{open(waits, 4), recorded(late(), nil, entry("0", "default_pg", 3, false))}}},
		{"recorders", "mismatch", Job{World: 2, Ranks: []Rank{open(waits, 4), recorded(in(1, "barrier", "", 30), nil, torchdump.Entry{Group: "0", Desc: "default_pg", Seq: 4, Backend: "gloo", Op: "barrier", Open: true})}}},
		{"communicators", "missing", Job{World: 2, Ranks: []Rank{waits, late()}, Communicators: []Communicator{{Size: 2, Started: []Started{{Counts: map[string]int{"AllReduce": 6}, Ranks: []int{0}}, {Counts: map[string]int{"AllReduce": 5}, Ranks: []int{1}}}}}}},
		// A rank that is absent explains why others differ, or why the network looks stuck.
		{"messages", "missing", Job{World: 3, Ranks: []Rank{waits, in(1, "recv", "src=2", 30), at(2, "load", 12)}}},
		{"starting", "missing", Job{World: 3, Ranks: []Rank{waits, in(1, "new_group", "", 5), at(2, "load", 12)}}},
		{"called", "handlers", Job{World: 2, Ranks: []Rank{
			worker(0, "a", openTo("b", 1, time.Minute), []stacks.Frame{goCall, goMain}), worker(1, "b", nil, []stacks.Frame{goMain}, goHandler),
		}}},
		{"handlers", "rpc", Job{World: 2, Ranks: []Rank{
			with(0, stacks.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, own),
			inOther(at(1, "main", 33), stacks.Frame{Func: "load", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"}),
		}}},
		// The meeting of those that wait is normal while one works for them.
		{"handlers", "serving", Job{World: 3, Ranks: []Rank{
			worker(0, "a", nil, []stacks.Frame{goCall, goMain}), worker(1, "b", nil, []stacks.Frame{goMain}, goHandler),
			edit(worker(2, "c", nil, []stacks.Frame{goMain}, goHandler), func(r *Rank) { r.Threads[1].State = "R" }),
		}}},
		{"serving", "rpc", Job{World: 2, Ranks: []Rank{
			worker(0, "a", nil, []stacks.Frame{{Func: module + "/rpc.(*Agent).Shutdown", File: module + "/rpc/shutdown.go"}, goMain}),
			edit(worker(1, "b", nil, []stacks.Frame{goMain}, goHandler), func(r *Rank) { r.Threads[1].State = "R" }),
		}}},
		{"rpc", "store", Job{World: 2, Waits: []Wait{{Key: "/k", Rank: 1, Age: time.Minute}}, Ranks: []Rank{with(0, stacks.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, own), late()}}},
		{"missing", "mismatch", Job{World: 3, Ranks: []Rank{waits, in(1, "barrier", "", 30), at(2, "load", 12)}}},
		{"missing", "devices", Job{World: 3, Ranks: []Rank{waits, late(), onGPU(2, own)}}},
		{"missing", "store", Job{World: 2, Waits: []Wait{{Key: "/k", Rank: 1, Age: time.Minute}}, Ranks: []Rank{waits, late()}}},
		// Ranks that disagree are no proof that the network is stuck.
		{"rooted", "same", Job{World: 2, Ranks: []Rank{in(0, "broadcast", "src=0", 27), in(1, "broadcast", "src=1", 27)}}},
		{"mismatch", "same", Job{World: 2, Ranks: []Rank{waits, in(1, "barrier", "", 30)}}},
		{"dialingLater", "same", Job{World: 2, Ranks: []Rank{dials(waits), dials(in(1, "all_reduce", "", 27))}}},
		{"dialingLater", "devices", Job{World: 2, Ranks: []Rank{dials(onGPU(0, collective, own)), dials(onGPU(1, collective, own))}}},
		{"devices", "same", Job{World: 2, Ranks: []Rank{onGPU(0, collective, own), onGPU(1, collective, own)}}},
		// A rank that the GPUs may wait for is a weaker proof than a key that no rank has set: the job may go on.
		{"devices", "store", Job{World: 2, Waits: []Wait{{Key: "/k", Rank: 1, Age: time.Minute}}, Ranks: []Rank{onGPU(0, own), late()}}},
		// What the store tells is more than that a rank asks it.
		{"polling", "store", Job{World: 2, Store: "127.0.0.1:29500", Polls: []Wait{{Key: "/k", Rank: 1, Age: time.Minute, Asks: 9}}, Ranks: []Rank{at(0, "load", 12), edit(late(), func(r *Rank) { r.Loops, r.Sleeps, r.Object = true, true, "127.0.0.1:29500" })}}},
		{"store", "unmatched", Job{World: 2, Waits: []Wait{{Key: "/k", Rank: 1, Age: time.Minute}}, Ranks: []Rank{in(0, "recv", "src=None", 30), late()}}},
	} {
		used[c.first], used[c.second] = true, true
		name := c.first + " before " + c.second
		if place[c.first] > place[c.second] {
			t.Errorf("%s: the stages are in another order", name)
		}
		first, ok := find[c.first](convene(c.job))
		if _, also := find[c.second](convene(c.job)); !ok || !also {
			t.Errorf("%s: one of them finds nothing: %v, %v", name, ok, also)
		}
		if got := Judge(c.job).Sentence; got != first.Sentence {
			t.Errorf("%s: %s\nwant %s", name, got, first.Sentence)
		}
	}
	for name := range find {
		if !used[name] {
			t.Errorf("nothing keeps the place of %s", name)
		}
	}
}
