// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// TestGPU: the main thread of a rank that waits for its GPU runs all the time, in a line that need not be one of torch.distributed. What
// NCCL has counted and recorded says who is behind; without it the sentence says no more than is known.
func TestGPU(t *testing.T) {
	t.Parallel()
	// On a GPU, as seen on a real one: three ranks, rank 1 stayed away from the sixth all_reduce.
	synchronizes := func(rank int) Rank {
		r := with(rank, stacks.Frame{Func: "synchronize", File: "/usr/lib/python3/dist-packages/torch/cuda/__init__.py", Line: 1}, stacks.Frame{Func: "<module>", File: script, Line: 56})
		return edit(r, func(r *Rank) { r.State, r.Main.State, r.Main.Kernel, r.GPU = "R", "R", "", true })
	}
	meets := func(rank int) Rank {
		return edit(in(rank, "barrier", "", 60), func(r *Rank) { r.State, r.Main.State, r.Main.Kernel, r.GPU = "R", "R", "", true })
	}
	sleeps := edit(at(1, "loads", 17), func(r *Rank) { r.Main.Kernel = "hrtimer_nanosleep" })
	moves := edit(at(1, "loads", 17), func(r *Rank) { r.Moved = true })
	computes := edit(with(1, stacks.Frame{Func: "svd", File: "/usr/lib/python3/dist-packages/numpy/linalg/linalg.py", Line: 9}, stacks.Frame{Func: "loads", File: script, Line: 17}),
		func(r *Rank) { r.State, r.Main.State, r.Main.Kernel, r.GPU = "R", "R", "", true })
	counts := func(all, one map[string]int) []Communicator {
		return []Communicator{{Size: 3, Started: []Started{{Counts: all, Ranks: []int{2, 0}}, {Counts: one, Ranks: []int{1}}}}}
	}
	recorded := func(r Rank, entries ...torchdump.Entry) Rank {
		r.Dump = &torchdump.Dump{Entries: entries}
		return r
	}
	number := func(seq int, op string, open bool) torchdump.Entry {
		return torchdump.Entry{Group: "0", Desc: "default_pg", Seq: seq, Backend: "nccl", Op: op, Open: open, Where: "train.py:35"}
	}
	six, five := map[string]int{"AllReduce": 6, "Broadcast": 0}, map[string]int{"AllReduce": 5, "Broadcast": 0}
	lost := func(number, rank int, fatal bool) []GPUError {
		return []GPUError{{Host: "b", Device: "0000:3b:00", Number: number, Words: "it has fallen off the bus", Fatal: fatal, Rank: rank, Age: 40 * time.Second}}
	}
	long := func(errors []GPUError) []GPUError {
		errors[0].Age = 5 * time.Hour
		return errors
	}
	for name, c := range map[string]struct {
		job         Job
		want        string
		hung, still bool
	}{
		"counted": {
			Job{World: 3, Ranks: []Rank{synchronizes(0), sleeps, synchronizes(2)}, Communicators: counts(six, five)},
			"Rank 1 has not started AllReduce number 6 of an NCCL communicator of 3 ranks; it is in loads (train.py:17), sleeping; ranks 0 and 2 wait.", true, false,
		},
		"counted, and those ahead are at work": {
			Job{World: 3, Ranks: []Rank{edit(at(0, "step", 5), func(r *Rank) { r.Moved = true }), moves, edit(at(2, "step", 5), func(r *Rank) { r.Moved = true })}, Communicators: counts(six, five)},
			"Not hung: ranks 0-2 are at work: ranks 0 and 2 are in step (train.py:5), rank 1 is in loads (train.py:17), and no rank waits in torch.distributed.", false, false,
		},
		"counted, behind on another host": {
			Job{World: 3, Ranks: []Rank{synchronizes(0), synchronizes(2)}, Communicators: counts(six, five)},
			"Rank 1 has not started AllReduce number 6 of an NCCL communicator of 3 ranks; it is on another host, where cohort why can tell more; ranks 0 and 2 wait.", true, false,
		},
		"counted, behind here and on another host": {
			Job{World: 4, Ranks: []Rank{synchronizes(0), sleeps}, Communicators: []Communicator{{Size: 4, Started: []Started{{Counts: six, Ranks: []int{0}}, {Counts: five, Ranks: []int{1, 2, 3}}}}}},
			"Rank 1 has not started AllReduce number 6 of an NCCL communicator of 4 ranks; it is in loads (train.py:17), sleeping; rank 0 waits; nor have ranks 2 and 3, on other hosts.", true, false,
		},
		"counted alike": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), synchronizes(1)}, Communicators: []Communicator{{Size: 2, Started: []Started{{Counts: map[string]int{"AllReduce": 5}, Ranks: []int{0}}, {Counts: five, Ranks: []int{1}}}}}},
			"Ranks 0 and 1 wait for a GPU, in <module> (train.py:56): perhaps hung; it may still compute, or be in a collective that not all ranks have entered.", false, true,
		},
		"recorded here, and a rank of another host was not seen": {
			Job{World: 3, Ranks: []Rank{recorded(synchronizes(0), number(6, "all_reduce", true)), recorded(synchronizes(1), number(6, "all_reduce", true))}},
			"Ranks 0 and 1 wait for their GPUs, in <module> (train.py:56), and have entered all_reduce number 6 of default_pg; of rank 2 nothing is known: perhaps hung; the GPUs may still compute what comes before it.", false, true,
		},
		"counted by kind": {
			Job{World: 3, Ranks: []Rank{synchronizes(0), sleeps, synchronizes(2)}, Communicators: counts(six, map[string]int{"AllReduce": 5, "Broadcast": 1})},
			"Rank 1 calls Broadcast where ranks 0 and 2 call AllReduce, as one of the first 6 of an NCCL communicator of 3 ranks.", true, false,
		},
		"behind by several kinds": {
			Job{World: 3, Ranks: []Rank{synchronizes(0), sleeps, synchronizes(2)}, Communicators: counts(map[string]int{"AllReduce": 6, "Broadcast": 1}, five)},
			"Rank 1 has not started collective number 6 of an NCCL communicator of 3 ranks; it is in loads (train.py:17), sleeping; ranks 0 and 2 wait.", true, false,
		},
		"recorded": {
			Job{World: 3, Ranks: []Rank{recorded(synchronizes(0), number(5, "all_reduce", false), number(6, "all_reduce", true)), recorded(sleeps, number(5, "all_reduce", false)), recorded(synchronizes(2), number(6, "all_reduce", true))}},
			"Rank 1 has not reached all_reduce number 6 of default_pg; it is in loads (train.py:17), sleeping; ranks 0 and 2 wait.", true, false,
		},
		"recorded, and the odd one is through": {
			Job{World: 3, Ranks: []Rank{recorded(synchronizes(0), number(6, "all_reduce", true)), recorded(sleeps, number(6, "broadcast", false)), recorded(synchronizes(2), number(6, "all_reduce", true))}},
			"Rank 1 calls broadcast (train.py:35) where ranks 0 and 2 call all_reduce (train.py:35) as number 6 of default_pg.", true, false,
		},
		"recorded, and all go on": {
			Job{World: 2, Ranks: []Rank{edit(recorded(at(0, "step", 5), number(6, "all_reduce", true)), func(r *Rank) { r.Moved = true }), recorded(moves, number(5, "all_reduce", false))}},
			"Not hung: ranks 0 and 1 are at work: rank 0 is in step (train.py:5), rank 1 is in loads (train.py:17), and no rank waits in torch.distributed.", false, false,
		},
		"recorded, and all have entered": {
			Job{World: 2, Ranks: []Rank{recorded(synchronizes(0), number(6, "all_reduce", true)), recorded(synchronizes(1), number(6, "all_reduce", true))}},
			"Ranks 0 and 1 wait for their GPUs, in <module> (train.py:56), and have entered all_reduce number 6 of default_pg: perhaps hung; the GPUs may still compute what comes before it.", false, true,
		},
		"stacks alone": {
			Job{World: 3, Ranks: []Rank{synchronizes(0), sleeps, synchronizes(2)}},
			"Rank 1 has perhaps not started the operation that is waited for in <module> (train.py:56); it is in loads (train.py:17), sleeping; ranks 0 and 2 wait.", false, true,
		},
		"stacks alone, and one moves": {
			Job{World: 3, Ranks: []Rank{synchronizes(0), moves, synchronizes(2)}},
			"Not hung: rank 1 is at work, in loads (train.py:17); ranks 0 and 2 wait in <module> (train.py:56).", false, false,
		},
		"stacks alone, and a library computes": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), edit(computes, func(r *Rank) { r.GPU = false })}},
			"Not hung: rank 1 is at work, in loads (train.py:17); rank 0 waits in <module> (train.py:56).", false, false,
		},
		"all in a collective, on their GPUs": {
			Job{World: 2, Ranks: []Rank{meets(0), meets(1)}},
			"Ranks 0 and 1 wait for a GPU, in barrier (train.py:60): perhaps hung; it may still compute, or be in a collective that not all ranks have entered.", false, true,
		},
		"one in a collective, one on its GPU": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 60), synchronizes(1)}},
			"Rank 1 waits for a GPU, in <module> (train.py:56), and rank 0 waits in barrier (train.py:60): perhaps hung; it may still compute, or be in a collective that not all ranks have entered.", false, true,
		},
		"a GPU that is lost": {
			Job{World: 3, Ranks: []Rank{synchronizes(0), synchronizes(1), synchronizes(2)}, GPUErrors: lost(79, 1, true)},
			"The GPU 0000:3b:00 of host b has failed: it has fallen off the bus (Xid 79, 40 s ago), in the process of rank 1; ranks 0 and 2 wait.", true, false,
		},
		"a GPU that is lost, of an unknown process": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), synchronizes(1)}, GPUErrors: lost(79, -1, true)},
			"Ranks 0 and 1 wait for a GPU, in <module> (train.py:56): perhaps hung; it may still compute, or be in a collective that not all ranks have entered; the GPU 0000:3b:00 of host b has failed and may be the one: it has fallen off the bus (Xid 79, 40 s ago).", false, true,
		},
		"a stranger's process that was stopped": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), synchronizes(1)}, GPUErrors: lost(45, -1, true)},
			"Ranks 0 and 1 wait for a GPU, in <module> (train.py:56): perhaps hung; it may still compute, or be in a collective that not all ranks have entered.", false, true,
		},
		"a rank's process that was stopped, after a stranger's": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), synchronizes(1)}, GPUErrors: append(lost(45, -1, true), lost(45, 1, true)...)},
			"The GPU 0000:3b:00 of host b has failed: it has fallen off the bus (Xid 45, 40 s ago), in the process of rank 1; rank 0 waits.", true, false,
		},
		"a rank that has ended, and a stranger's GPU that is lost": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), edit(at(1, "step", 5), func(r *Rank) { r.Gone = "raised ValueError: bad batch" })}, GPUErrors: lost(79, -1, true)},
			"Rank 1 raised ValueError: bad batch; rank 0 waits.", true, false,
		},
		"a rank that is late, and a stranger's GPU that is lost": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 60), sleeps}, GPUErrors: lost(79, -1, true)},
			"Rank 1 has not reached barrier (train.py:60); it is in loads (train.py:17), sleeping; rank 0 waits.", true, false,
		},
		"an error of a rank, long before the others waited": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "barrier", "", 60), func(r *Rank) { r.Idle = 5 * time.Second }), sleeps}, GPUErrors: long(lost(79, 1, true))},
			"Rank 1 has not reached barrier (train.py:60); it is in loads (train.py:17), sleeping; rank 0 waits for 5 s.", true, false,
		},
		"an error that a GPU has survived": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), synchronizes(1)}, GPUErrors: lost(63, -1, false)},
			"Ranks 0 and 1 wait for a GPU, in <module> (train.py:56): perhaps hung; it may still compute, or be in a collective that not all ranks have entered.", false, true,
		},
		"a GPU that is lost, and no rank waits": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "step", 5), func(r *Rank) { r.Moved = true }), moves}, GPUErrors: lost(79, -1, true)},
			"Not hung: ranks 0 and 1 are at work: rank 0 is in step (train.py:5), rank 1 is in loads (train.py:17), and no rank waits in torch.distributed.", false, false,
		},
		"a job of one rank on its GPU": {
			Job{World: 1, Ranks: []Rank{synchronizes(0)}},
			"Rank 0 waits for a GPU, in <module> (train.py:56): perhaps hung; it may still compute.", false, true,
		},
		"all on their GPUs": {
			Job{World: 2, Ranks: []Rank{synchronizes(0), synchronizes(1)}},
			"Ranks 0 and 1 wait for a GPU, in <module> (train.py:56): perhaps hung; it may still compute, or be in a collective that not all ranks have entered.", false, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if v := Judge(c.job); v.Sentence != c.want || v.Hung != c.hung || v.Still != c.still {
				t.Errorf("hung %v, still %v:\n%s\nwant hung %v, still %v:\n%s", v.Hung, v.Still, v.Sentence, c.hung, c.still, c.want)
			}
		})
	}
}

// TestProgress: a job that stands still has come no further.
func TestProgress(t *testing.T) {
	t.Parallel()
	at := func(seq int) []Rank {
		return []Rank{{Rank: 0}, {Rank: 1, Dump: &torchdump.Dump{Entries: []torchdump.Entry{{Group: "0", Seq: seq}, {Group: "1", Seq: 1}}}}}
	}
	if again := Progress(at(5)); Progress(at(5)) != again || again == Progress(at(6)) || again == "" || Progress([]Rank{{Rank: 0}}) != "" {
		t.Errorf("%q, %q, %q", Progress(at(5)), Progress(at(6)), Progress([]Rank{{Rank: 0}}))
	}
}
