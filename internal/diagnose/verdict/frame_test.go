// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import "github.com/cohort-dist/cohort/internal/diagnose/stacks"

const (
	c10d   = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
	logger = "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py"
	script = "/srv/job/train.py"
)

// in returns a rank whose main thread is in a call of torch.distributed that the script makes in a line.
func in(rank int, op, args string, line int) Rank {
	return with(rank, stacks.Frame{Func: op, File: c10d, Line: 1, Args: args}, stacks.Frame{Func: "_exception_logger.<locals>.wrapper", File: logger, Line: 83},
		stacks.Frame{Func: "step", File: script, Line: line}, stacks.Frame{Func: "<module>", File: script, Line: 99})
}

// at returns a rank that is in a function of the script.
func at(rank int, function string, line int) Rank {
	return with(rank, stacks.Frame{Func: function, File: script, Line: line}, stacks.Frame{Func: "<module>", File: script, Line: 99})
}

func with(rank int, frames ...stacks.Frame) Rank {
	t := stacks.Thread{ID: 100 + rank, State: "S", Kernel: "futex_do_wait", Frames: frames}
	return Rank{Rank: rank, PID: 100 + rank, Process: Process{State: "S"}, Stacks: Stacks{Threads: []stacks.Thread{t}, Main: &t}}
}

func edit(r Rank, change func(*Rank)) Rank {
	change(&r)
	return r
}

var (
	goCall    = stacks.Frame{Func: module + "/rpc.Call", File: module + "/rpc/call.go", Line: 9}
	goMain    = stacks.Frame{Func: "main.main", File: "/home/u/main.go", Line: 2}
	goHandler = stacks.Frame{Func: "main.load", File: "/home/u/load.go", Line: 12}
)

// worker is a Go rank that is a worker of RPC.
func worker(rank int, name string, calls []Call, frames ...stacks.Frame) Rank {
	r := with(rank, frames...)
	r.Worker = &Worker{Name: name, Calls: calls}
	return r
}
