// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// eventLoop is how a program runs asyncio.
var eventLoop = []stacks.Frame{
	{Func: "BaseEventLoop.run_forever", File: "/usr/lib/python3.14/asyncio/base_events.py"},
	{Func: "Runner.run", File: "/usr/lib/python3.14/asyncio/runners.py"},
	{Func: "run", File: "/usr/lib/python3.14/asyncio/runners.py"},
	{Func: "main", File: script, Line: 40},
}

const poolFile = "/usr/lib/python3.14/multiprocessing/pool.py"

// inMap is how a program waits for a multiprocessing.Pool.
var inMap = []stacks.Frame{
	{Func: "Event.wait", File: "/usr/lib/python3.14/threading.py"},
	{Func: "ApplyResult.get", File: poolFile},
	{Func: "Pool.map", File: poolFile},
	{Func: "load", File: script, Line: 12},
}

// TestSentencesOutside: ranks that are held up outside of torch.distributed, or have exited.
func TestSentencesOutside(t *testing.T) {
	t.Parallel()
	wantSentences(t, map[string]sentence{
		"a connection without an answer": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "load", 12), func(r *Rank) {
				r.Main.Kernel, r.Object, r.Dials = "wait_woken", "10.0.0.5:443", []string{"10.0.0.5:443"}
			})}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), connecting to 10.0.0.5:443; rank 0 waits.",
		},
		"a connection that is read, beside one without an answer": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "load", 12), func(r *Rank) {
				r.Main.Kernel, r.Object, r.Dials = "wait_woken", "10.0.0.5:443", []string{"10.0.0.6:443"}
			})}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), reading from 10.0.0.5:443; rank 0 waits.",
		},
		"a cgroup that is frozen": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "load", 12), func(r *Rank) {
				r.Main.State, r.Main.Kernel, r.Frozen, r.Idle = "D", "hrtimer_nanosleep", true, 40*time.Second
			})}},
			"Rank 1 is frozen with the cgroup of process 101 (docker pause, or a scheduler that suspends jobs) for 40 s: thaw the cgroup (docker unpause); rank 0 waits.",
		},
		"cgroups of all ranks that are frozen": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "barrier", "", 27), func(r *Rank) { r.Main.Kernel, r.Frozen = "get_signal", true }), edit(at(1, "load", 12), func(r *Rank) { r.Main.Kernel, r.Frozen = "get_signal", true })}},
			"Ranks 0 and 1 are frozen with the cgroup of process 100 (docker pause, or a scheduler that suspends jobs): thaw the cgroup (docker unpause).",
		},
		"a server of files that is gone": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "load", 12), func(r *Rank) {
				r.Main.State, r.Main.Kernel, r.Object, r.Idle = "D", "rpc_wait_bit_killable", "/mnt/data/a.pt", 40*time.Second
			})}},
			"Rank 1 is stuck in the kernel (rpc_wait_bit_killable), waiting for the network file system (NFS) of /mnt/data/a.pt, at train.py:12 for 40 s; rank 0 waits.",
		},
		"a file system of a process that does not answer": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "load", 12), func(r *Rank) { r.Main.Kernel = "request_wait_answer" })}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), waiting for the file system (FUSE) of a file; rank 0 waits.",
		},
		"a disk that is slow": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "load", 12), func(r *Rank) {
				r.Main.State, r.Main.Kernel, r.Object, r.Idle = "D", "folio_wait_bit_common", "/data/a.pt", 3*time.Millisecond
			})}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), waiting for the disk or network file system of /data/a.pt; rank 0 waits.",
		},
		"a key of the store that is asked for again and again": {
			Job{World: 2, Store: "127.0.0.1:29500", Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "meet", 12), func(r *Rank) {
				r.Main.Kernel, r.Object, r.Sleeps, r.Idle = "wait_woken", "127.0.0.1:29500", true, 3*time.Millisecond
			})}},
			"Rank 1 has not reached barrier (train.py:27); it is in meet (train.py:12), polling the store; rank 0 waits.",
		},
		"a file that is looked for again and again": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "meet", 12), func(r *Rank) { r.Main.Kernel, r.Sleeps, r.Idle = "hrtimer_nanosleep", true, 200*time.Millisecond })}},
			"Rank 1 has not reached barrier (train.py:27); it is in meet (train.py:12), sleeping repeatedly; rank 0 waits.",
		},
		"a download that is slow": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "fetch", 12), func(r *Rank) {
				r.Main.Kernel, r.Object, r.Sleeps, r.Idle = "wait_woken", "10.0.0.5:443", true, 3*time.Millisecond
			})}},
			"Rank 1 has not reached barrier (train.py:27); it is in fetch (train.py:12), reading from 10.0.0.5:443; rank 0 waits.",
		},
		"a pool whose process was killed": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(with(1, inMap...), func(r *Rank) { r.PoolIdle = true })}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), in Pool.map of pool.py, and no process of the pool runs a task: one that did has probably been killed, which the pool does not notice; rank 0 waits.",
		},
		"a pool of threads": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), inOther(edit(with(1, inMap...), func(r *Rank) { r.PoolIdle = true }), stacks.Frame{Func: "worker", File: poolFile})}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), in Pool.map of pool.py; rank 0 waits.",
		},
		"a pool whose processes run the code of libraries": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), with(1, inMap...)}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), in Pool.map of pool.py; rank 0 waits.",
		},
		"a queue that no thread fills any more": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(with(1, stacks.Frame{Func: "Queue.get", File: "/usr/lib/python3.11/multiprocessing/queues.py", Line: 9}, stacks.Frame{Func: "load", File: script, Line: 12}), func(r *Rank) { r.LostChildren = true })}},
			"Rank 1 has not reached barrier (train.py:27); it is in load (train.py:12), in Queue.get of queues.py, and a process that it started has exited; rank 0 waits.",
		},
		"no rank waits": {
			Job{World: 3, Ranks: []Rank{at(0, "save", 14), at(1, "load_batch", 12), at(2, "load_batch", 12)}},
			"Perhaps not hung: no rank waits in torch.distributed; rank 0 is in save (train.py:14); ranks 1 and 2 are in load_batch (train.py:12).",
		},
		"the interpreter lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "<module>", 66), func(r *Rank) { r.Threads[0].HoldsGIL, r.Main.HoldsGIL = true, true })}},
			"Rank 1 holds the interpreter lock (GIL) in a C call at train.py:66; its other Python threads cannot run; rank 0 waits.",
		},
		"a thread with the interpreter lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "join", 66), func(r *Rank) {
				r.Threads = append(r.Threads, stacks.Thread{ID: 777, State: "S", HoldsGIL: true, Frames: []stacks.Frame{{Func: "write", File: script, Line: 70}}})
			})}},
			"Rank 1's thread 777 holds the interpreter lock (GIL) in a C call at train.py:70; its other Python threads cannot run; rank 0 waits.",
		},
		"a named pipe": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "save", 66), func(r *Rank) { r.Threads[0].HoldsGIL, r.Threads[0].Kernel = true, "wait_for_partner" })}},
			"Rank 1 holds the interpreter lock (GIL) in a C call at train.py:66, opening a named pipe whose other end no process opens; its other Python threads cannot run; rank 0 waits.",
		},
		"a debugger": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 40), edit(with(1, stacks.Frame{Func: "Pdb.interaction", File: "/usr/lib/python3.13/pdb.py"}, stacks.Frame{Func: "Bdb.trace_dispatch", File: "/usr/lib/python3.13/bdb.py"}, stacks.Frame{Func: "step", File: script, Line: 30}), func(r *Rank) { r.Main.Kernel = "n_tty_read" })}},
			"Rank 1 has not reached barrier (train.py:40); it is in step (train.py:30), in the debugger, reading from the terminal; rank 0 waits.",
		},
		"a data loader worker that is stopped": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, stacks.Frame{Func: "_BaseDataLoaderIter.__next__", File: "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"}, stacks.Frame{Func: "train", File: script, Line: 40}), func(r *Rank) {
				r.Children = []Child{{PID: 901, Frames: []stacks.Frame{{Func: "Data.__getitem__", File: script, Line: 8}}, Kernel: "do_signal_stop", Stopped: true}}
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in train (train.py:40), in _BaseDataLoaderIter.__next__ of dataloader.py, for its process 901, which is in Data.__getitem__ (train.py:8), stopped (SIGSTOP or a debugger); rank 0 waits.",
		},
		"a queue": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), with(1, stacks.Frame{Func: "Condition.wait", File: "/usr/lib/python3.13/threading.py"}, stacks.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/queue.py"}, stacks.Frame{Func: "load", File: script, Line: 30})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), in Queue.get of queue.py, and it has no other thread that could fill the queue; rank 0 waits.",
		},
		"a file lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load", 30), func(r *Rank) { r.Main.Kernel, r.Idle = "locks_lock_inode_wait", 40*time.Second })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), waiting for a file lock for 40 s; rank 0 waits.",
		},
		"two locks": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load", 30), func(r *Rank) {
				r.Threads = append(r.Threads, stacks.Thread{ID: 777, State: "S", Kernel: "futex_do_wait", Frames: []stacks.Frame{{Func: "write", File: script, Line: 70}}})
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), and its thread 777 in write (train.py:70): perhaps each holds a lock that the other waits for; rank 0 waits.",
		},
		"a thread that has raised": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load", 30), func(r *Rank) { r.Raised = "RuntimeError: no data (work (train.py:9))" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30); the last thing it printed is RuntimeError: no data (work (train.py:9)); rank 0 waits.",
		},
		"a data loader worker that hangs": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, stacks.Frame{Func: "_MultiProcessingDataLoaderIter.__next__", File: "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"}, stacks.Frame{Func: "train", File: script, Line: 40}), func(r *Rank) {
				r.Children = []Child{{PID: 900, Command: "helper"}, {PID: 901, Frames: []stacks.Frame{{Func: "Data.__getitem__", File: script, Line: 8}}, Kernel: "hrtimer_nanosleep"}}
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in train (train.py:40), in _MultiProcessingDataLoaderIter.__next__ of dataloader.py, for its process 901, which is in Data.__getitem__ (train.py:8), sleeping; rank 0 waits.",
		},
		"another program": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, stacks.Frame{Func: "run", File: "/usr/lib/python3.13/subprocess.py"}, stacks.Frame{Func: "unpack", File: script, Line: 40}), func(r *Rank) {
				r.Main.Kernel, r.Children = "do_wait", []Child{{PID: 900, Command: "tar"}}
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in unpack (train.py:40), in run of subprocess.py, waiting for a child process, for its process 900 (tar); rank 0 waits.",
		},
		"a collective in a thread": {
			Job{World: 2, Ranks: []Rank{inOther(with(0, stacks.Frame{Func: "Thread.join", File: "/usr/lib/python3.13/threading.py"}, stacks.Frame{Func: "main", File: script, Line: 40}), stacks.Frame{Func: "all_reduce", File: c10d}, stacks.Frame{Func: "sync", File: script, Line: 9}), at(1, "load", 12)}},
			"Rank 1 has not reached all_reduce (train.py:9); it is in load (train.py:12); rank 0 waits.",
		},
		"a thread that is waited for": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), inOther(with(1, stacks.Frame{Func: "Thread.join", File: "/usr/lib/python3.13/threading.py"}, stacks.Frame{Func: "main", File: script, Line: 40}), stacks.Frame{Func: "download", File: script, Line: 9})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in main (train.py:40), in Thread.join of threading.py, for its thread 777, which is in download (train.py:9), reading from a pipe; rank 0 waits.",
		},
		"threads of event loops": {
			Job{World: 2, Ranks: []Rank{
				edit(with(0, append([]stacks.Frame{{Func: "EpollSelector.select", File: "/usr/lib/python3.14/selectors.py"}}, eventLoop...)...), func(r *Rank) {
					r.Main.Kernel, r.Moved = "ep_poll", true
					r.Threads = append(r.Threads, stacks.Thread{ID: 777, State: "S", Frames: []stacks.Frame{{Func: "all_reduce", File: c10d}, {Func: "_WorkItem.run", File: "/usr/lib/python3.14/concurrent/futures/thread.py"}}})
				}),
				edit(with(1, append([]stacks.Frame{{Func: "EpollSelector.select", File: "/usr/lib/python3.14/selectors.py"}}, eventLoop...)...), func(r *Rank) { r.Main.Kernel = "ep_poll" }),
			}},
			"Rank 1 has not reached all_reduce (train.py:40); it is in main (train.py:40), in run of runners.py, waiting in its event loop; rank 0 waits.",
		},
		"threads of main threads that only watch": {
			Job{World: 2, Ranks: []Rank{
				edit(inOther(at(0, "watch", 40), stacks.Frame{Func: "all_reduce", File: c10d}, stacks.Frame{Func: "train", File: script, Line: 9}), func(r *Rank) { r.Main.Kernel = "hrtimer_nanosleep" }),
				edit(at(1, "watch", 40), func(r *Rank) { r.Main.Kernel = "hrtimer_nanosleep" }),
			}},
			"Rank 1 has not reached all_reduce (train.py:9); it is in watch (train.py:40), sleeping; rank 0 waits.",
		},
		"a thread of a rank that others wait for": {
			Job{World: 2, Ranks: []Rank{
				in(0, "barrier", "", 30),
				edit(inOther(at(1, "load", 40), stacks.Frame{Func: "gather_object", File: c10d}, stacks.Frame{Func: "save", File: script, Line: 9}), func(r *Rank) { r.Main.Kernel = "hrtimer_nanosleep" }),
			}},
			"Rank 1 has not reached barrier (train.py:30); it is in load (train.py:40), sleeping; rank 0 waits.",
		},
		"a thread beside": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), inOther(with(1, stacks.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/queue.py"}, stacks.Frame{Func: "main", File: script, Line: 40}), stacks.Frame{Func: "produce", File: script, Line: 9})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in main (train.py:40), in Queue.get of queue.py, while its thread 777 is in produce (train.py:9), reading from a pipe; rank 0 waits.",
		},
		"its own lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "save", 12), func(r *Rank) { r.Line = "with self.mu:" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in save (train.py:12), waiting for a lock, and it has no other thread that could release it: perhaps it holds the lock itself, or another process does; rank 0 waits.",
		},
		"a rank whose program has ended": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1), func(r *Rank) { r.Ending = true })}},
			"Rank 1 has not reached all_reduce (train.py:27); its program has ended, but its process has not exited; rank 0 waits.",
		},
		"a late rank and one whose program has ended": {
			Job{World: 3, Ranks: []Rank{in(0, "gather", "dst=0", 27), edit(with(1), func(r *Rank) { r.Ending = true }), at(2, "load", 12)}},
			"Rank 2 has not reached gather (train.py:27); it is in load (train.py:12); rank 0 waits; rank 1 is exiting.",
		},
		"a rank that ends": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Idle = 9 * time.Second }), edit(with(1), func(r *Rank) { r.Raised = "RuntimeError: no grad (step (train.py:9))" })}},
			"Rank 1 has not reached all_reduce (train.py:27); the process is not running Python code (starting or exiting); the last thing it printed is RuntimeError: no grad (step (train.py:9)); rank 0 waits for 9 s.",
		},
		"ranks that end": {
			Job{World: 2, Ranks: []Rank{edit(with(0), func(r *Rank) { r.State, r.Raised = "R", "RuntimeError: closed (step (train.py:9))" }), {Rank: 1, Gone: Succeeded}}},
			"Not hung: rank 0 is starting or exiting; the last thing it printed is RuntimeError: closed (step (train.py:9)); rank 1 has exited with code 0.",
		},
		"a function that was called": {
			Job{World: 2, Ranks: []Rank{
				with(0, stacks.Frame{Func: "rpc_sync", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, stacks.Frame{Func: "main", File: script, Line: 33}),
				inOther(with(1, stacks.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, stacks.Frame{Func: "main", File: script, Line: 40}),
					stacks.Frame{Func: "fetch", File: script, Line: 9}, stacks.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"}),
			}},
			"Rank 1 runs a function that was called by RPC and does not return: its thread 777 is in fetch (train.py:9), reading from a pipe; rank 0 waits in rpc_sync (train.py:33).",
		},
		"a handler that waits for another handler": {
			Job{World: 2, Ranks: []Rank{
				inOther(with(0, stacks.Frame{Func: "rpc_sync", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, stacks.Frame{Func: "main", File: script, Line: 33}),
					stacks.Frame{Func: "rpc_sync", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, stacks.Frame{Func: "middle", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"}),
				inOther(with(1, stacks.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, stacks.Frame{Func: "main", File: script, Line: 40}),
					stacks.Frame{Func: "inner", File: script, Line: 6}, stacks.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"}),
			}},
			"Rank 1 runs a function that was called by RPC and does not return: its thread 777 is in inner (train.py:6), reading from a pipe; rank 0 waits in rpc_sync (train.py:33).",
		},
		"a thread that does not end": {
			Job{World: 1, Ranks: []Rank{edit(with(0, stacks.Frame{Func: "_shutdown", File: "/usr/lib/python3.14/threading.py", Line: 1583}), func(r *Rank) {
				r.Threads = append(r.Threads, stacks.Thread{ID: 777, Frames: []stacks.Frame{{Func: "metrics", File: script, Line: 70}}})
			})}},
			"Perhaps not hung: no rank waits in torch.distributed; rank 0 is in _shutdown (threading.py:1583), waiting at exit for its thread 777 (not a daemon thread), which is in metrics (train.py:70).",
		},
		"others have failed": {
			Job{World: 2, Ranks: []Rank{{Rank: 0, Gone: "lost its connection to another rank"}, at(1, "save", 12)}},
			"Rank 0 lost its connection to another rank; of the others no rank waits in torch.distributed: rank 1 is in save (train.py:12).",
		},
		"a rank that died": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), {Rank: 1, Gone: "was killed by SIGKILL"}}},
			"Rank 1 was killed by SIGKILL; rank 0 waits.",
		},
		"a rank that does not run": {
			Job{World: 2, Local: true, Ranks: []Rank{in(0, "all_reduce", "", 27)}},
			"Rank 1 is not running: of a world of 2 only rank 0 was found; rank 0 waits in all_reduce (train.py:27).",
		},
		"a stopped rank": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load_batch", 12), func(r *Rank) { r.State = "T" })}},
			"Rank 1 is stopped (SIGSTOP or a debugger, process 101); kill -CONT resumes it; rank 0 waits.",
		},
		"a checkpoint": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(with(1, stacks.Frame{Func: "_open_zipfile_writer_file.__exit__", File: "/usr/lib/python3/dist-packages/torch/serialization.py"}, stacks.Frame{Func: "save", File: "/usr/lib/python3/dist-packages/torch/serialization.py"}, stacks.Frame{Func: "checkpoint", File: script, Line: 88}), func(r *Rank) { r.Main.State, r.Main.Kernel = "D", "nfs_wait_bit_killable" })}},
			"Rank 1 writes a checkpoint and is stuck in the file system at train.py:88; rank 0 waits.",
		},
		"a dead data loader": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, stacks.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/multiprocessing/queues.py"}, stacks.Frame{Func: "_MultiProcessingDataLoaderIter._try_get_data", File: "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"}, stacks.Frame{Func: "train", File: script, Line: 40}), func(r *Rank) { r.LostChildren = true })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in train (train.py:40), in _MultiProcessingDataLoaderIter._try_get_data of dataloader.py, for a data loader worker that has died; rank 0 waits.",
		},
		"the network": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "all_reduce", "", 27)}},
			"Ranks 0 and 1 are in all_reduce (train.py:27) and none makes progress: the network between them is stuck, or their tensors differ in size, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
		},
		"no hang": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "forward", 30), func(r *Rank) { r.Moved = true }), edit(at(1, "forward", 31), func(r *Rank) { r.Moved = true })}},
			"Not hung: ranks 0 and 1 are at work: rank 0 is in forward (train.py:30), rank 1 is in forward (train.py:31), and no rank waits in torch.distributed.",
		},
		"no stacks": {
			Job{World: 2, Ranks: []Rank{{Rank: 0, State: "S", Trouble: "not a CPython process"}, {Rank: 1, State: "S", Trouble: "not a CPython process"}}},
			"No Python stack could be read: not a CPython process.",
		},
		"no stacks of ranks at work": {
			Job{World: 2, Ranks: []Rank{{Rank: 0, State: "R", Trouble: "not a CPython process"}, {Rank: 1, State: "S", Trouble: "not a CPython process"}}},
			"Rank 0 is at work, but no Python stack could be read: not a CPython process.",
		},
		"a rank without a recorder that is on its way": {
			Job{World: 3, Ranks: []Rank{
				edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Dump = typed(t, "Float")[0].Dump }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Dump = typed(t, "Float")[0].Dump }),
				edit(in(2, "all_reduce", "", 27), func(r *Rank) { r.Moved = true }),
			}},
			"Not hung: rank 2 is at work, in all_reduce (train.py:27); ranks 0 and 1 wait in all_reduce (train.py:27).",
		},
		"a program that is an installed package": {
			Job{World: 2, Ranks: []Rank{
				with(0, stacks.Frame{Func: "all_reduce", File: c10d, Line: 1}, stacks.Frame{Func: "step", File: "/opt/venv/lib/python3.13/site-packages/trainer/loop.py", Line: 7}, stacks.Frame{Func: "_run_code", File: "<frozen runpy>", Line: 88}),
				with(1, stacks.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/queue.py", Line: 1}, stacks.Frame{Func: "load", File: "/opt/venv/lib/python3.13/site-packages/trainer/data.py", Line: 3}, stacks.Frame{Func: "_run_code", File: "<frozen runpy>", Line: 88}),
			}},
			"Rank 1 has not reached all_reduce (loop.py:7); it is in load (data.py:3), in Queue.get of queue.py, and it has no other thread that could fill the queue; rank 0 waits.",
		},
		"a victim that has ended, and a rank that has raised and not ended": {
			Job{World: 2, Ranks: []Rank{
				{Rank: 0, Gone: "lost its connection to another rank: RuntimeError: Connection closed by peer"},
				edit(at(1, "tidy_up", 9), func(r *Rank) { r.Raised = "ValueError: bad batch 17 (step (train.py:3))" }),
			}},
			"Rank 0 lost its connection to another rank: RuntimeError: Connection closed by peer; of the others no rank waits in torch.distributed: rank 1 is in tidy_up (train.py:9); the last thing it printed is ValueError: bad batch 17 (step (train.py:3)).",
		},
	})
}
