// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// sleeping returns a rank that has slept for a time in a function of the script, and is going to sleep for another.
func sleeping(rank int, slept, wakes time.Duration) Rank {
	return edit(at(rank, "load", 12), func(r *Rank) { r.Main.Kernel, r.Idle, r.Wakes = "hrtimer_nanosleep", slept, wakes })
}

// TestStanding: a job that goes on by itself is not called hung, and the sentence says so, too.
func TestStanding(t *testing.T) {
	t.Parallel()
	idle := func(r *Rank) { r.Idle = 400 * time.Second }
	inThread := func(rank int, op string, line int) Rank {
		return inOther(sleeping(rank, 0, time.Second), in(rank, op, "", line).Main.Frames...)
	}
	wantSentences(t, map[string]sentence{
		"main threads that watch over others": {
			Job{World: 2, Ranks: []Rank{inThread(0, "all_reduce", 27), inThread(1, "broadcast", 55)}},
			"Rank 0 calls all_reduce (train.py:27), rank 1 calls broadcast (train.py:55).",
		},
		"all sleep": {
			Job{World: 2, Ranks: []Rank{sleeping(0, 4*time.Second, 3*time.Second), sleeping(1, 4*time.Second, 3*time.Second)}},
			"Perhaps not hung: no rank waits in torch.distributed; ranks 0 and 1 are in load (train.py:12), sleeping for 4 s, and for 3 s more.",
		},
		"one sleeps for a moment": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), sleeping(1, 4*time.Second, 3*time.Second)}},
			"Perhaps not hung: rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:12), sleeping for 4 s, and for 3 s more; rank 0 waits.",
		},
		"one sleeps for long": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), sleeping(1, 4*time.Second, 900*time.Second)}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:12), sleeping for 4 s, and for 900 s more; rank 0 waits.",
		},
		"one sleeps, and another is late, too": {
			Job{World: 3, Ranks: []Rank{in(0, "all_reduce", "", 27), sleeping(1, 4*time.Second, 3*time.Second), at(2, "load", 12)}},
			"Ranks 1 and 2 have not reached all_reduce (train.py:27); they are in load (train.py:12), sleeping for 4 s, and for 3 s more; rank 0 waits.",
		},
		"one that would sleep is stopped": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(sleeping(1, 4*time.Second, 3*time.Second), func(r *Rank) { r.State = "T" })}},
			"Rank 1 is stopped (SIGSTOP or a debugger, process 101); kill -CONT resumes it; rank 0 waits.",
		},
		"one is in a debugger": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load", 12), func(r *Rank) { r.State, r.Tracer = "t", &Holder{PID: 777, Command: "gdb", Rank: -1} })}},
			"Rank 1 is stopped by a debugger (process 777, gdb) and continues when the debugger resumes it; rank 0 waits.",
		},
		"no rank has done anything for long": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "load", 12), idle), edit(at(1, "load", 12), idle)}},
			"No rank waits in torch.distributed: ranks 0 and 1 are in load (train.py:12) for 400 s.",
		},
		"one sleeps while the others have done nothing for long": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "load", 12), idle), sleeping(1, 400*time.Second, 3*time.Second)}},
			"Perhaps not hung: no rank waits in torch.distributed; rank 0 is in load (train.py:12) for 400 s; rank 1 is in load (train.py:12), sleeping for 400 s, and for 3 s more.",
		},
	})
}

// TestHolder: who holds a file lock is named.
func TestHolder(t *testing.T) {
	t.Parallel()
	lock := func(h *Holder) Job {
		return Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "download", 12), func(r *Rank) {
			r.Main.Kernel, r.Object, r.Idle, r.Holder = "fcntl_setlk", "/data/lock", 3*time.Second, h
		})}}
	}
	const before, after = "Rank 1 has not reached barrier (train.py:27); it is in download (train.py:12), waiting for a file lock of /data/lock", " for 3 s; rank 0 waits."
	wantSentences(t, map[string]sentence{
		"not known":       {lock(nil), before + after},
		"a rank":          {lock(&Holder{PID: 100, Rank: 0, Command: "python3"}), before + ", held by rank 0," + after},
		"itself":          {lock(&Holder{PID: 101, Rank: 1, Command: "python3"}), before + ", held by it itself," + after},
		"a child":         {lock(&Holder{PID: 777, Rank: 0, Command: "pt_data_worker"}), before + ", held by process 777 (pt_data_worker) below rank 0," + after},
		"another process": {lock(&Holder{PID: 777, Rank: -1, Command: "rsync"}), before + ", held by process 777 (rsync)," + after},
	})
}

// TestImports: a process that runs the program anew, and comes to a call that waits for other ranks, is told with what mends that.
func TestImports(t *testing.T) {
	t.Parallel()
	child := Child{PID: 777, Command: "python3", Imports: true, Frames: append(in(0, "init_process_group", "", 14).Main.Frames, stacks.Frame{Func: "import_main_path", File: "/usr/lib/python3.14/multiprocessing/spawn.py"})}
	loads := func(rank int) Rank {
		return edit(with(rank, stacks.Frame{Func: "DataLoader.__iter__", File: "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"}, stacks.Frame{Func: "<module>", File: script, Line: 16}), func(r *Rank) {
			r.Main.Kernel, r.Idle, r.Children = "unix_stream_read_generic", 3*time.Second, []Child{child}
		})
	}
	const does = "in <module> (train.py:16), in DataLoader.__iter__ of dataloader.py, reading from a socket for 3 s"
	const because = ` for its process 777, which imports the program again and is in init_process_group (train.py:14): put that call under if __name__ == "__main__"`
	wantSentences(t, map[string]sentence{
		"all": {Job{World: 2, Ranks: []Rank{loads(0), loads(1)}}, "Perhaps not hung: no rank waits in torch.distributed; ranks 0 and 1 are " + does + "; rank 0 waits" + because + "."},
		"one": {Job{World: 2, Ranks: []Rank{edit(loads(0), func(r *Rank) {
			r.Children = []Child{{PID: 776, Imports: true, Frames: at(0, "<module>", 1).Main.Frames}}
		}), loads(1)}}, "Perhaps not hung: no rank waits in torch.distributed; ranks 0 and 1 are " + does + "; rank 1 waits" + because + "."},
		"late": {Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), loads(1)}}, "Rank 1 has not reached barrier (train.py:27); it is " + does + "," + because + "; rank 0 waits."},
	})
}
