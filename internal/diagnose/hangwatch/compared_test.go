// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package hangwatch

import (
	"testing"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

// TestCompared: a job whose ranks wait for GPUs hangs if its recorders stand still, or if a rank waits for something
// else; if nothing tells, it may. One that comes further does not.
func TestCompared(t *testing.T) {
	t.Parallel()
	onGPU := func(rank, line, seq int) verdict.Rank {
		main := &stacks.Thread{State: "R", Frames: []stacks.Frame{{Func: "step", File: "/home/train.py", Line: line}}}
		r := verdict.Rank{Rank: rank, Process: verdict.Process{State: "R", GPU: true}, Stacks: verdict.Stacks{Main: main}}
		if seq > 0 {
			r.Dump = &torchdump.Dump{Entries: []torchdump.Entry{{Group: "0", Seq: seq, Backend: "nccl", Op: "all_reduce", Open: true}}}
		}
		return r
	}
	sleeps := verdict.Rank{
		Rank: 1, Process: verdict.Process{State: "S"},
		Stacks: verdict.Stacks{Main: &stacks.Thread{
			State: "S", Kernel: "hrtimer_nanosleep",
			Frames: []stacks.Frame{{Func: "load", File: "/home/train.py", Line: 9}},
		}},
	}
	for name, c := range map[string]struct {
		first, second []verdict.Rank
		wentOn, sure  bool
	}{
		"nothing tells": {
			[]verdict.Rank{onGPU(0, 5, 0), onGPU(1, 5, 0)},
			[]verdict.Rank{onGPU(0, 5, 0), onGPU(1, 5, 0)},
			false, false,
		},
		"recorders": {
			[]verdict.Rank{onGPU(0, 5, 7), onGPU(1, 5, 7)},
			[]verdict.Rank{onGPU(0, 5, 7), onGPU(1, 5, 7)},
			false, true,
		},
		"recorders go on": {
			[]verdict.Rank{onGPU(0, 5, 7), onGPU(1, 5, 7)},
			[]verdict.Rank{onGPU(0, 5, 9), onGPU(1, 5, 9)},
			true, true,
		},
		"another line": {
			[]verdict.Rank{onGPU(0, 5, 0), onGPU(1, 5, 0)},
			[]verdict.Rank{onGPU(0, 6, 0), onGPU(1, 5, 0)},
			true, false,
		},
		"one sleeps elsewhere": {[]verdict.Rank{onGPU(0, 5, 0), sleeps}, []verdict.Rank{onGPU(0, 5, 0), sleeps}, false, true},
	} {
		wentOn, sure := compared(verdict.Job{World: 2, Ranks: c.first}, verdict.Job{World: 2, Ranks: c.second})
		if wentOn != c.wentOn || sure != c.sure {
			t.Errorf("%s: went on %v, sure %v", name, wentOn, sure)
		}
	}
}
