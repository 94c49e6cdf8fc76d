// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/frdump"
	"github.com/cohort-dist/cohort/internal/pystack"
)

const (
	c10d   = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
	logger = "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py"
	script = "/srv/job/train.py"
)

// in returns a rank whose main thread is in a call of torch.distributed that the script makes in a line.
func in(rank int, op, args string, line int) Rank {
	return with(rank, pystack.Frame{Func: op, File: c10d, Line: 1, Args: args}, pystack.Frame{Func: "_exception_logger.<locals>.wrapper", File: logger, Line: 83},
		pystack.Frame{Func: "step", File: script, Line: line}, pystack.Frame{Func: "<module>", File: script, Line: 99})
}

// at returns a rank that is in a function of the script.
func at(rank int, function string, line int) Rank {
	return with(rank, pystack.Frame{Func: function, File: script, Line: line}, pystack.Frame{Func: "<module>", File: script, Line: 99})
}

func with(rank int, frames ...pystack.Frame) Rank {
	t := pystack.Thread{ID: 100 + rank, State: "S", Kernel: "futex_do_wait", Frames: frames}
	return Rank{Rank: rank, PID: 100 + rank, State: "S", Threads: []pystack.Thread{t}, Main: &t}
}

// inOther adds a second thread that reads from a pipe.
func inOther(r Rank, frames ...pystack.Frame) Rank {
	r.Threads = append(r.Threads, pystack.Thread{ID: 777, State: "S", Kernel: "anon_pipe_read", Frames: frames})
	return r
}

// told gives a rank what it was started with.
func told(r Rank, world int, store string) Rank {
	r.World, r.Store = world, store
	return r
}

func edit(r Rank, change func(*Rank)) Rank {
	change(&r)
	return r
}

func dumps(t *testing.T, kind string, ranks ...Rank) []Rank {
	t.Helper()
	for i := range ranks {
		data, err := os.ReadFile(filepath.Join("..", "frdump", "testdata", kind, "rank"+string(rune('0'+ranks[i].Rank))+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if ranks[i].Dump, err = frdump.Parse(data); err != nil {
			t.Fatal(err)
		}
	}
	return ranks
}

// typed returns ranks that are in the same collective with elements of these types.
func typed(t *testing.T, types ...string) []Rank {
	t.Helper()
	var all []Rank
	for rank, name := range types {
		d, err := frdump.Parse([]byte(`{"version":"2.10","pg_config":{"0":{"name":"0","desc":"default_pg","ranks":"[0, 1, 2]"}},"entries":[{"record_id":3,"pg_id":0,
			"process_group":["0","default_pg"],"collective_seq_id":4,"profiling_name":"nccl:all_reduce","input_sizes":[[8]],"input_dtypes":["` + name + `"],"state":"scheduled"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Rank{Rank: rank, Dump: d})
	}
	return all
}

func TestSentences(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job  Job
		want string
	}{
		"one rank late": {
			Job{World: 3, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load_batch", 12), func(r *Rank) { r.Idle = 40 * time.Second }), in(2, "all_reduce", "", 27)}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load_batch (train.py:12) for 40 s; ranks 0 and 2 wait.",
		},
		"one rank late that asks again and again": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "take_lock", 12), func(r *Rank) { r.State, r.Main.State, r.Main.Kernel, r.Sleeps = "R", "R", "", true })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in take_lock (train.py:12), sleeping again and again; rank 0 waits.",
		},
		"all ask again and again": {
			Job{World: 2, Ranks: []Rank{at(0, "take_lock", 12), edit(at(1, "take_lock", 13), func(r *Rank) { r.State, r.Main.State, r.Main.Kernel, r.Sleeps = "R", "R", "", true })}},
			"No rank waits in torch.distributed: rank 0 is in take_lock (train.py:12); rank 1 is in take_lock (train.py:13), sleeping again and again.",
		},
		"one rank late, with recorders": {
			Job{World: 3, Ranks: dumps(t, "missing", in(0, "all_reduce", "", 27), at(1, "load_batch", 12), in(2, "all_reduce", "", 27))},
			"Rank 1 has not reached all_reduce number 4 of default_pg; it is in load_batch (train.py:12); ranks 0 and 2 wait.",
		},
		"several ranks late": {
			Job{World: 4, Ranks: []Rank{in(0, "all_reduce", "", 27), at(1, "load_batch", 12), at(2, "save", 14), in(3, "all_reduce", "", 27)}},
			"Ranks 1 and 2 have not reached all_reduce (train.py:27); they are in load_batch (train.py:12), save (train.py:14); ranks 0 and 3 wait.",
		},
		"different collectives": {
			Job{World: 3, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "broadcast", "src=0", 55), in(2, "all_reduce", "", 27)}},
			"Rank 1 calls broadcast (train.py:55) where ranks 0 and 2 call all_reduce (train.py:27).",
		},
		"different collectives, with recorders": {
			Job{World: 2, Ranks: dumps(t, "mismatch", in(0, "all_reduce", "", 27), in(1, "broadcast", "src=0", 55))},
			"Rank 1 calls broadcast (train.py:55) where rank 0 calls all_reduce (train.py:27) as number 4 of default_pg.",
		},
		"different types": {
			Job{World: 3, Ranks: typed(t, "Float", "Half", "Float")},
			"Rank 1 calls all_reduce of type Half where ranks 0 and 2 call all_reduce of type Float as number 4 of default_pg.",
		},
		"crossed groups": {
			Job{World: 2, Ranks: dumps(t, "subgroup", in(0, "all_reduce", "", 71), in(1, "all_reduce", "", 71))},
			"Ranks 0 and 1 wait for each other in different groups: rank 0 in all_reduce of half (train.py:71), rank 1 in all_reduce of default_pg (train.py:71).",
		},
		"a message": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=1 group=None tag=0", 62), at(1, "load_batch", 12)}},
			"Rank 0 waits for a message of rank 1 (train.py:62), which is in load_batch (train.py:12) and sends none.",
		},
		"another WORLD_SIZE": {
			Job{World: 3, Ranks: []Rank{told(in(0, "barrier", "", 6), 3, "a:1"), told(in(1, "barrier", "", 6), 3, "a:1"), told(in(2, "init_process_group", "backend=\"gloo\" world_size=4 rank=2", 5), 4, "a:1")}},
			"Rank 2 has WORLD_SIZE 4 where ranks 0 and 1 have 3: all ranks must have the same; rank 2 waits in init_process_group (train.py:5).",
		},
		"another world_size of the program": {
			Job{World: 2, Ranks: []Rank{told(in(0, "init_process_group", "world_size=2", 5), 2, "a:1"), told(in(1, "init_process_group", "world_size=3", 5), 2, "a:1")}},
			"Rank 1 has world_size 3 where rank 0 has 2: all ranks must have the same; ranks 0 and 1 wait in init_process_group (train.py:5).",
		},
		"different worlds that have met": {
			Job{World: 2, Ranks: []Rank{told(in(0, "barrier", "", 6), 2, "a:1"), told(at(1, "save", 14), 3, "a:1")}},
			"Rank 1 has not reached barrier (train.py:6); it is in save (train.py:14); rank 0 waits.",
		},
		"another port of the program": {
			Job{World: 2, Store: "a:1", Ranks: []Rank{told(in(0, "init_process_group", "world_size=2", 5), 2, "a:1"), edit(told(in(1, "init_process_group", "world_size=-1", 5), 2, "a:1"), func(r *Rank) {
				r.Main.Frames = append([]pystack.Frame{{Func: "_create_c10d_store", File: strings.Replace(c10d, "distributed_c10d", "rendezvous", 1), Line: 1, Args: `hostname="a" port=2 rank=1 world_size=2`}}, r.Main.Frames...)
			})}},
			"Rank 1 uses the store at a:2 where rank 0 uses a:1: all ranks must have the same MASTER_ADDR and MASTER_PORT; ranks 0 and 1 wait in init_process_group (train.py:5).",
		},
		"another port": {
			Job{World: 2, Local: true, Store: "a:1", Strays: []Stray{{1, 107, "a:2"}}, Ranks: []Rank{told(in(0, "init_process_group", "", 5), 2, "a:1")}},
			"Rank 0 uses the store at a:1, and rank 1 of the same program (process 107) uses a:2: all ranks must have the same MASTER_ADDR and MASTER_PORT; rank 0 waits in init_process_group (train.py:5).",
		},
		"ranks on other hosts": {
			Job{World: 3, Ranks: []Rank{in(0, "init_process_group", "", 5), in(1, "init_process_group", "", 5)}},
			"Ranks 0 and 1 are in init_process_group (train.py:5) and wait for others; rank 2 of the world of 3 does not run on this host.",
		},
		"a message with another tag, and a rank behind it": {
			Job{World: 3, Ranks: []Rank{in(0, "send", "dst=1 tag=0", 6), in(1, "recv", "src=0 tag=5", 9), in(2, "recv", "src=0 tag=5", 9)}},
			"Rank 0 sends a message to rank 1 (train.py:6), which waits for one of rank 0 (train.py:9), and it does not arrive: it has tag 0, and rank 1 waits for tag 5.",
		},
		"nobody waits": {
			Job{World: 3, Ranks: []Rank{at(0, "save", 14), at(1, "load_batch", 12), at(2, "load_batch", 12)}},
			"No rank waits in torch.distributed: rank 0 is in save (train.py:14); ranks 1 and 2 are in load_batch (train.py:12).",
		},
		"messages that wait for each other": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=1", 62), in(1, "recv", "src=0", 64)}},
			"Ranks 0 and 1 wait for each other: both are in recv (train.py:62 and train.py:64).",
		},
		"the interpreter lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "<module>", 66), func(r *Rank) { r.Threads[0].HoldsGIL, r.Main.HoldsGIL = true, true })}},
			"Rank 1 holds the interpreter lock in a call of C at train.py:66; nothing else in it can run; rank 0 waits.",
		},
		"a thread with the interpreter lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "join", 66), func(r *Rank) {
				r.Threads = append(r.Threads, pystack.Thread{ID: 777, State: "S", HoldsGIL: true, Frames: []pystack.Frame{{Func: "write", File: script, Line: 70}}})
			})}},
			"Rank 1's thread 777 holds the interpreter lock in a call of C at train.py:70; nothing else in it can run; rank 0 waits.",
		},
		"a store that waits with the lock": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "init_process_group", "", 5), func(r *Rank) { r.Threads[0].HoldsGIL, r.Threads[0].Kernel = true, "hrtimer_nanosleep" }), at(1, "load", 12)}},
			"Rank 1 has not called init_process_group; it is in load (train.py:12); rank 0 waits.",
		},
		"a named pipe": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "save", 66), func(r *Rank) { r.Threads[0].HoldsGIL, r.Threads[0].Kernel = true, "wait_for_partner" })}},
			"Rank 1 holds the interpreter lock in a call of C at train.py:66, opening a named pipe whose other end nobody opens; nothing else in it can run; rank 0 waits.",
		},
		"a chain of messages": {
			Job{World: 4, Ranks: []Rank{in(0, "recv", "src=1", 18), in(1, "recv", "src=2", 19), in(2, "recv", "src=3", 20), at(3, "load", 21)}},
			"Rank 2 waits for a message of rank 3 (train.py:20), which is in load (train.py:21) and sends none.",
		},
		"a chain of messages to nobody": {
			Job{World: 3, Ranks: []Rank{in(0, "recv", "src=1", 18), in(1, "recv", "src=7", 19)}},
			"Rank 0 waits for a message of rank 1 (train.py:18), which is in recv (train.py:19) and sends none.",
		},
		"a message beside a collective": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "step", 30), func(r *Rank) { r.Line, r.Idle = "request.wait()", 9*time.Second }), in(1, "barrier", "", 40)}},
			"Rank 0 waits for an operation that was started earlier, in step (train.py:30), where rank 1 calls barrier (train.py:40) for 9 s: each side waits for what the other has not called.",
		},
		"a group of some": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Line = "dist.all_reduce(x, group=left)" }), at(1, "load", 12), at(2, "save", 14)}},
			"Ranks 1 and 2 have not reached all_reduce (train.py:27), which only those in its group have to; they are in load (train.py:12), save (train.py:14); rank 0 waits.",
		},
		"the group of all": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Line = "dist.all_reduce(x, group=None)" }), at(1, "load", 12), at(2, "save", 14)}},
			"Ranks 1 and 2 have not reached all_reduce (train.py:27); they are in load (train.py:12), save (train.py:14); rank 0 waits.",
		},
		"the group of all by its name": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Line = "dist.all_reduce(x, group=dist.group.WORLD)" }), at(1, "load", 12), at(2, "save", 14)}},
			"Ranks 1 and 2 have not reached all_reduce (train.py:27); they are in load (train.py:12), save (train.py:14); rank 0 waits.",
		},
		"a late rank and one that ends": {
			Job{World: 3, Ranks: []Rank{in(0, "gather", "dst=0", 27), with(1), at(2, "load", 12)}},
			"Rank 2 has not reached gather (train.py:27); it is in load (train.py:12); rank 0 waits; rank 1 starts or ends.",
		},
		"PyTorch's store": {
			Job{World: 2, Store: "localhost:29500", Ranks: []Rank{at(0, "load", 12), edit(at(1, "config", 30), func(r *Rank) {
				r.Main.Kernel, r.Object, r.Idle = "poll_schedule_timeout.constprop.0", "127.0.0.1:29500", 9*time.Second
			})}},
			"Rank 1 waits for the store, in config (train.py:30) for 9 s: probably for a key that nobody has set.",
		},
		"PyTorch's store, and a rank that works": {
			Job{World: 2, Store: "localhost:29500", Ranks: []Rank{edit(at(0, "load", 12), func(r *Rank) { r.State, r.Main.State, r.Main.Kernel = "R", "R", "" }), edit(at(1, "config", 30), func(r *Rank) {
				r.Main.Kernel, r.Object, r.Idle = "poll_schedule_timeout.constprop.0", "127.0.0.1:29500", 9*time.Second
			})}},
			"Not hung: rank 0 is at work, in load (train.py:12), and no rank waits in torch.distributed.",
		},
		"PyTorch's store before a collective": {
			Job{World: 2, Store: "127.0.0.1:29500", Ranks: []Rank{in(0, "barrier", "", 40), edit(at(1, "config", 30), func(r *Rank) {
				r.Main.Kernel, r.Object = "poll_schedule_timeout.constprop.0", "127.0.0.1:29500"
			})}},
			"Rank 1 has not reached barrier (train.py:40); it is in config (train.py:30), waiting for the store; rank 0 waits.",
		},
		"a server with a time limit": {
			Job{World: 2, Store: "10.0.0.4:443", Ranks: []Rank{in(0, "barrier", "", 40), edit(at(1, "download", 30), func(r *Rank) {
				r.Main.Kernel, r.Object = "poll_schedule_timeout.constprop.0", "10.0.0.5:443"
			})}},
			"Rank 1 has not reached barrier (train.py:40); it is in download (train.py:30), waiting for 10.0.0.5:443; rank 0 waits.",
		},
		"a store that the program names": {
			Job{World: 2, Store: "a:1", Ranks: []Rank{
				told(with(0, pystack.Frame{Func: "_create_c10d_store", File: strings.Replace(c10d, "distributed_c10d", "rendezvous", 1), Line: 1, Args: `hostname="a" port=2 rank=0 world_size=4`}, pystack.Frame{Func: "init_process_group", File: c10d, Args: `init_method="tcp://a:2" world_size=4`}, pystack.Frame{Func: "main", File: script, Line: 5}), 2, "a:1"),
				told(in(1, "init_process_group", `init_method="tcp://a:2" world_size=4 rank=1`, 5), 2, "a:1"),
			}},
			"The program wants more ranks than there are: WORLD_SIZE is 2, but it calls init_process_group with world_size=4 (train.py:5); ranks 0 and 1 wait.",
		},
		"groups in another order, with PyTorch's store": {
			Job{World: 2, Ranks: []Rank{in(0, "new_group", "", 10), in(1, "new_group", "", 12)}},
			"Ranks 0 and 1 are in new_group (train.py:10 and train.py:12) and wait for each other: every rank must create the same groups in the same order.",
		},
		"a debugger": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 40), edit(with(1, pystack.Frame{Func: "Pdb.interaction", File: "/usr/lib/python3.13/pdb.py"}, pystack.Frame{Func: "Bdb.trace_dispatch", File: "/usr/lib/python3.13/bdb.py"}, pystack.Frame{Func: "step", File: script, Line: 30}), func(r *Rank) { r.Main.Kernel = "n_tty_read" })}},
			"Rank 1 has not reached barrier (train.py:40); it is in step (train.py:30), in the debugger, reading from the terminal; rank 0 waits.",
		},
		"a data loader worker that is stopped": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, pystack.Frame{Func: "_BaseDataLoaderIter.__next__", File: "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"}, pystack.Frame{Func: "train", File: script, Line: 40}), func(r *Rank) {
				r.Children = []Child{{PID: 901, Frames: []pystack.Frame{{Func: "Data.__getitem__", File: script, Line: 8}}, Kernel: "do_signal_stop", Stopped: true}}
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in train (train.py:40), in _BaseDataLoaderIter.__next__ of dataloader.py, for its process 901, which is in Data.__getitem__ (train.py:8), stopped (SIGSTOP or a debugger); rank 0 waits.",
		},
		"a queue": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), with(1, pystack.Frame{Func: "Condition.wait", File: "/usr/lib/python3.13/threading.py"}, pystack.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/queue.py"}, pystack.Frame{Func: "load", File: script, Line: 30})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), in Queue.get of queue.py, and it has no other thread that could fill the queue; rank 0 waits.",
		},
		"a file lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load", 30), func(r *Rank) { r.Main.Kernel, r.Idle = "locks_lock_inode_wait", 40*time.Second })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), waiting for a file lock for 40 s; rank 0 waits.",
		},
		"two locks": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load", 30), func(r *Rank) {
				r.Threads = append(r.Threads, pystack.Thread{ID: 777, State: "S", Kernel: "futex_do_wait", Frames: []pystack.Frame{{Func: "write", File: script, Line: 70}}})
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), and its thread 777 in write (train.py:70): perhaps each holds a lock that the other waits for; rank 0 waits.",
		},
		"a thread that has raised": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load", 30), func(r *Rank) { r.Raised = "RuntimeError: no data (work (train.py:9))" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30); the last that it printed is RuntimeError: no data (work (train.py:9)); rank 0 waits.",
		},
		"a data loader worker that hangs": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, pystack.Frame{Func: "_MultiProcessingDataLoaderIter.__next__", File: "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"}, pystack.Frame{Func: "train", File: script, Line: 40}), func(r *Rank) {
				r.Children = []Child{{PID: 900, Command: "helper"}, {PID: 901, Frames: []pystack.Frame{{Func: "Data.__getitem__", File: script, Line: 8}}, Kernel: "hrtimer_nanosleep"}}
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in train (train.py:40), in _MultiProcessingDataLoaderIter.__next__ of dataloader.py, for its process 901, which is in Data.__getitem__ (train.py:8), sleeping; rank 0 waits.",
		},
		"another program": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, pystack.Frame{Func: "run", File: "/usr/lib/python3.13/subprocess.py"}, pystack.Frame{Func: "unpack", File: script, Line: 40}), func(r *Rank) {
				r.Main.Kernel, r.Children = "do_wait", []Child{{PID: 900, Command: "tar"}}
			})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in unpack (train.py:40), in run of subprocess.py, waiting for a child process, for its process 900 (tar); rank 0 waits.",
		},
		"a key that a late rank waits for": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), at(1, "load", 30)}, Waits: []Wait{{Key: "/config", Rank: 1, Age: 9 * time.Second}}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), for the key /config of the store, which nobody has set; rank 0 waits.",
		},
		"asynchronous work": {
			Job{World: 3, Ranks: []Rank{edit(at(0, "step", 30), func(r *Rank) { r.Line = "handle.wait()" }), at(1, "load", 12), edit(at(2, "step", 30), func(r *Rank) { r.Line = "handle.wait()" })}},
			"Rank 1 has not started the operation that is waited for in step (train.py:30); it is in load (train.py:12); ranks 0 and 2 wait.",
		},
		"a backward pass": {
			Job{World: 2, Ranks: []Rank{with(0, pystack.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, pystack.Frame{Func: "Tensor.backward", File: "/usr/lib/python3/dist-packages/torch/_tensor.py"}, pystack.Frame{Func: "step", File: script, Line: 30}), at(1, "load", 12)}},
			"Rank 1 has not reached backward (train.py:30); it is in load (train.py:12); rank 0 waits.",
		},
		"a backward pass beside a collective": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), with(1, pystack.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, pystack.Frame{Func: "step", File: script, Line: 30})}},
			"Rank 0 calls all_reduce (train.py:27) where rank 1 is in backward (train.py:30), which in DDP needs all ranks: did rank 0 get fewer batches?",
		},
		"different roots": {
			Job{World: 3, Ranks: []Rank{in(0, "broadcast", "src=0 group=None", 27), in(1, "broadcast", "src=1 group=None", 27), edit(in(2, "broadcast", "src=0 group=None", 27), func(r *Rank) { r.Idle = 9 * time.Second })}},
			"Rank 1 calls broadcast with src=1 (train.py:27) where ranks 0 and 2 call broadcast with src=0 (train.py:27) for 9 s.",
		},
		"the model on one rank": {
			Job{World: 2, Ranks: []Rank{with(0, pystack.Frame{Func: "DistributedDataParallel.forward", File: "/usr/lib/python3/dist-packages/torch/nn/parallel/distributed.py"}, pystack.Frame{Func: "evaluate", File: script, Line: 27}), in(1, "barrier", "", 30)}},
			"Rank 1 calls barrier (train.py:30) where rank 0 calls DistributedDataParallel.forward (train.py:27); if rank 1 did not get fewer batches, let rank 0 use the model's .module, which needs no other rank.",
		},
		"a checkpoint of one rank": {
			Job{World: 2, Ranks: []Rank{with(0, pystack.Frame{Func: "gather_object", File: c10d}, pystack.Frame{Func: "_DistWrapper.reduce_scatter", File: "/usr/lib/python3/dist-packages/torch/distributed/checkpoint/utils.py"}, pystack.Frame{Func: "save", File: "/usr/lib/python3/dist-packages/torch/distributed/checkpoint/state_dict_saver.py"}, pystack.Frame{Func: "_dcp_method_logger.<locals>.wrapper", File: "/usr/lib/python3/dist-packages/torch/distributed/checkpoint/logger.py"}, pystack.Frame{Func: "main", File: script, Line: 27}), in(1, "barrier", "", 30)}},
			"Rank 1 calls barrier (train.py:30) where rank 0 calls gather_object in checkpoint.save (train.py:27).",
		},
		"groups in another order": {
			Job{World: 3, Ranks: []Rank{in(0, "new_group", "", 10), in(1, "new_group", "", 12), in(2, "new_group", "", 12)}, Waits: []Wait{{Key: "/default_pg/0//2//cpu//0/2", Rank: 0, Age: 4 * time.Second}}},
			"Ranks 0-2 are in new_group (train.py:10 and train.py:12) and wait for each other: every rank must create the same groups in the same order.",
		},
		"a collective in a thread": {
			Job{World: 2, Ranks: []Rank{inOther(with(0, pystack.Frame{Func: "Thread.join", File: "/usr/lib/python3.13/threading.py"}, pystack.Frame{Func: "main", File: script, Line: 40}), pystack.Frame{Func: "all_reduce", File: c10d}, pystack.Frame{Func: "sync", File: script, Line: 9}), at(1, "load", 12)}},
			"Rank 1 has not reached all_reduce (train.py:9); it is in load (train.py:12); rank 0 waits.",
		},
		"a thread that is waited for": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), inOther(with(1, pystack.Frame{Func: "Thread.join", File: "/usr/lib/python3.13/threading.py"}, pystack.Frame{Func: "main", File: script, Line: 40}), pystack.Frame{Func: "download", File: script, Line: 9})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in main (train.py:40), in Thread.join of threading.py, for its thread 777, which is in download (train.py:9), reading from a pipe; rank 0 waits.",
		},
		"a thread beside": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), inOther(with(1, pystack.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/queue.py"}, pystack.Frame{Func: "main", File: script, Line: 40}), pystack.Frame{Func: "produce", File: script, Line: 9})}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in main (train.py:40), in Queue.get of queue.py, while its thread 777 is in produce (train.py:9), reading from a pipe; rank 0 waits.",
		},
		"its own lock": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "save", 12), func(r *Rank) { r.Line = "with self.mu:" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in save (train.py:12), waiting for a lock, and it has no other thread that could release it: perhaps it holds the lock itself; rank 0 waits.",
		},
		"a server that does not answer": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, pystack.Frame{Func: "urlopen", File: "/usr/lib/python3.13/urllib/request.py"}, pystack.Frame{Func: "download", File: script, Line: 9}), func(r *Rank) { r.Main.Kernel, r.Object = "wait_woken", "10.0.0.5:443" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in download (train.py:9), in urlopen of request.py, reading from 10.0.0.5:443; rank 0 waits.",
		},
		"a name": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, pystack.Frame{Func: "getaddrinfo", File: "/usr/lib/python3.13/socket.py"}, pystack.Frame{Func: "urlopen", File: "/usr/lib/python3.13/urllib/request.py"}, pystack.Frame{Func: "download", File: script, Line: 9}), func(r *Rank) { r.Main.Kernel = "poll_schedule_timeout.constprop.0" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in download (train.py:9), in urlopen of request.py, resolving a host name; rank 0 waits.",
		},
		"a rank whose program has ended": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1), func(r *Rank) { r.Ending = true })}},
			"Rank 1 has not reached all_reduce (train.py:27); its program has ended, and its process has not; rank 0 waits.",
		},
		"a late rank and one whose program has ended": {
			Job{World: 3, Ranks: []Rank{in(0, "gather", "dst=0", 27), edit(with(1), func(r *Rank) { r.Ending = true }), at(2, "load", 12)}},
			"Rank 2 has not reached gather (train.py:27); it is in load (train.py:12); rank 0 waits; rank 1 ends.",
		},
		"a store of the program's own": {
			Job{World: 2, Local: true, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{
				told(in(0, "init_process_group", `init_method="tcp://a:2" world_size=2`, 5), 2, "a:1"),
				told(in(1, "init_process_group", `init_method="tcp://a:2" world_size=2`, 5), 2, "a:1"),
			}},
			"Ranks 0 and 1 are in init_process_group (train.py:5) and wait for each other.",
		},
		"a file as the store": {
			Job{World: 1, Local: true, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{
				edit(told(in(0, "init_process_group", "", 5), 1, "a:1"), func(r *Rank) { r.Line = `dist.init_process_group("gloo", init_method="file:///srv/x")` }),
			}},
			"Rank 0 is in init_process_group (train.py:5) and waits for others.",
		},
		"a function that backward calls": {
			Job{World: 2, Ranks: []Rank{
				with(0, pystack.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, pystack.Frame{Func: "step", File: script, Line: 30}),
				with(1, pystack.Frame{Func: "hook", File: script, Line: 12}, pystack.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, pystack.Frame{Func: "step", File: script, Line: 30}),
			}},
			"Rank 1 has not finished backward (train.py:30); it is in hook (train.py:12); rank 0 waits.",
		},
		"no store": {
			Job{World: 2, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{told(in(1, "init_process_group", "init_method=None", 5), 2, "a:1")}},
			"Rank 1 cannot reach the store at a:1: nothing listens there; rank 0, which hosts it unless a launcher does, does not run on this host.",
		},
		"a rank that ends": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Idle = 9 * time.Second }), edit(with(1), func(r *Rank) { r.Raised = "RuntimeError: no grad (step (train.py:9))" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it runs no Python code: it starts or ends; the last that it printed is RuntimeError: no grad (step (train.py:9)); rank 0 waits for 9 s.",
		},
		"ranks that end": {
			Job{World: 2, Ranks: []Rank{edit(with(0), func(r *Rank) { r.State, r.Raised = "R", "RuntimeError: closed (step (train.py:9))" }), {Rank: 1, Gone: Succeeded}}},
			"Not hung: rank 0 is starting or ending; the last that it printed is RuntimeError: closed (step (train.py:9)); rank 1 has ended with exit code 0.",
		},
		"one is at work in a collective": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Moved = true }), in(1, "barrier", "", 30)}},
			"Not hung: rank 0 is at work, in all_reduce (train.py:27); rank 1 waits in barrier (train.py:30).",
		},
		"a message of anybody": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=None tag=0", 27), edit(at(1, "load", 30), func(r *Rank) { r.Main.Kernel = "hrtimer_nanosleep" })}},
			"Rank 0 waits for a message of any rank (train.py:27), and none sends one: rank 1 is in load (train.py:30), sleeping.",
		},
		"a message with another tag": {
			Job{World: 2, Ranks: []Rank{in(0, "send", "dst=1 tag=1", 27), in(1, "recv", "src=0 tag=2", 30)}},
			"Rank 0 sends a message to rank 1 (train.py:27), which waits for one of rank 0 (train.py:30), and it does not arrive: it has tag 1, and rank 1 waits for tag 2.",
		},
		"a message in another group": {
			Job{World: 2, Ranks: []Rank{in(0, "send", "dst=1 tag=0", 27), in(1, "recv", "src=0 tag=0", 30)}},
			"Rank 0 sends a message to rank 1 (train.py:27), which waits for one of rank 0 (train.py:30), and it does not arrive: are they of the same group?",
		},
		"a function that was called": {
			Job{World: 2, Ranks: []Rank{
				with(0, pystack.Frame{Func: "rpc_sync", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, pystack.Frame{Func: "main", File: script, Line: 33}),
				inOther(with(1, pystack.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, pystack.Frame{Func: "main", File: script, Line: 40}),
					pystack.Frame{Func: "fetch", File: script, Line: 9}, pystack.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"}),
			}},
			"Rank 1 runs a function that was called by RPC and does not end: its thread 777 is in fetch (train.py:9), reading from a pipe; rank 0 waits in rpc_sync (train.py:33).",
		},
		"a handler that waits for another handler": {
			Job{World: 2, Ranks: []Rank{
				inOther(with(0, pystack.Frame{Func: "rpc_sync", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, pystack.Frame{Func: "main", File: script, Line: 33}),
					pystack.Frame{Func: "rpc_sync", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, pystack.Frame{Func: "middle", File: script, Line: 12}, pystack.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"}),
				inOther(with(1, pystack.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, pystack.Frame{Func: "main", File: script, Line: 40}),
					pystack.Frame{Func: "inner", File: script, Line: 6}, pystack.Frame{Func: "_run_function", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/internal.py"}),
			}},
			"Rank 1 runs a function that was called by RPC and does not end: its thread 777 is in inner (train.py:6), reading from a pipe; rank 0 waits in rpc_sync (train.py:33).",
		},
		"a collective that moves": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Moved = true }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Moved = true })}},
			"Not hung: ranks 0 and 1 are at work, in all_reduce (train.py:27), and no rank waits in torch.distributed.",
		},
		"a message from another rank": {
			Job{World: 3, Ranks: []Rank{in(0, "send", "dst=1", 10), in(1, "recv", "src=2", 12), in(2, "barrier", "", 14)}},
			"Rank 1 waits for a message of rank 2 (train.py:12), which is in barrier (train.py:14) and sends none; rank 0 has a message for it (train.py:10): is src right?",
		},
		"a ring of messages": {
			Job{World: 3, Ranks: []Rank{in(0, "send", "dst=1", 10), in(1, "send", "dst=2", 10), in(2, "send", "dst=0", 10)}},
			"Ranks 0-2 wait for each other in a ring: each is in send (train.py:10) with the next; let one of them do the opposite first, or use batch_isend_irecv.",
		},
		"new_group, left out": {
			Job{World: 3, Ranks: []Rank{in(0, "new_group", "", 10), edit(in(1, "new_group", "", 10), func(r *Rank) { r.Moved = true }), in(2, "barrier", "", 12)}},
			"Rank 2 is in barrier (train.py:12) where ranks 0 and 1 call new_group (train.py:10): every rank must call new_group for every group, in the same order, also for groups that it is not in.",
		},
		"a thread that does not end": {
			Job{World: 1, Ranks: []Rank{edit(with(0, pystack.Frame{Func: "_shutdown", File: "/usr/lib/python3.14/threading.py", Line: 1583}), func(r *Rank) {
				r.Threads = append(r.Threads, pystack.Thread{ID: 777, Frames: []pystack.Frame{{Func: "metrics", File: script, Line: 70}}})
			})}},
			"No rank waits in torch.distributed: rank 0 is in _shutdown (threading.py:1583), waiting at its end for its thread 777 (no daemon), which is in metrics (train.py:70).",
		},
		"others have failed": {
			Job{World: 2, Ranks: []Rank{{Rank: 0, Gone: "lost its connection to another rank"}, at(1, "save", 12)}},
			"Rank 0 lost its connection to another rank; of the others no rank waits in torch.distributed: rank 1 is in save (train.py:12).",
		},
		"before init": {
			Job{World: 2, Ranks: []Rank{
				with(0, pystack.Frame{Func: "_create_c10d_store", File: "/usr/lib/python3/dist-packages/torch/distributed/rendezvous.py", Line: 215}, pystack.Frame{Func: "init_process_group", File: c10d, Line: 2546}, pystack.Frame{Func: "<module>", File: script, Line: 5}),
				at(1, "load_batch", 12),
			}},
			"Rank 1 has not called init_process_group; it is in load_batch (train.py:12); rank 0 waits.",
		},
		"before init, on another host": {
			Job{World: 2, Ranks: []Rank{in(0, "init_process_group", "", 5)}, Waits: []Wait{{Key: "/default_pg/0//cpu//0/1", Rank: 0, Age: 30 * time.Second}}},
			"Rank 1 has not called init_process_group; rank 0 waits for 30 s.",
		},
		"new_group": {
			Job{World: 2, Ranks: []Rank{in(0, "new_group", "", 5)}, Waits: []Wait{{Key: "/default_pg/0//2//cpu//0/1", Rank: 0, Age: time.Second / 2}}},
			"Rank 1 has not called new_group number 2; rank 0 waits.",
		},
		"new_group not called": {
			Job{World: 2, Ranks: []Rank{in(0, "new_group", "", 5), at(1, "load_batch", 12)}},
			"Rank 1 has not called new_group; it is in load_batch (train.py:12); rank 0 waits.",
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
			"Rank 1 is stopped (SIGSTOP or a debugger, process 101); kill -CONT lets it go on; rank 0 waits.",
		},
		"a checkpoint": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 27), edit(with(1, pystack.Frame{Func: "_open_zipfile_writer_file.__exit__", File: "/usr/lib/python3/dist-packages/torch/serialization.py"}, pystack.Frame{Func: "save", File: "/usr/lib/python3/dist-packages/torch/serialization.py"}, pystack.Frame{Func: "checkpoint", File: script, Line: 88}), func(r *Rank) { r.Main.State, r.Main.Kernel = "D", "nfs_wait_bit_killable" })}},
			"Rank 1 writes a checkpoint and is stuck in the file system at train.py:88; rank 0 waits.",
		},
		"a dead data loader": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, pystack.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/multiprocessing/queues.py"}, pystack.Frame{Func: "_MultiProcessingDataLoaderIter._try_get_data", File: "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"}, pystack.Frame{Func: "train", File: script, Line: 40}), func(r *Rank) { r.LostChildren = true })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in train (train.py:40), in _MultiProcessingDataLoaderIter._try_get_data of dataloader.py, for a data loader worker that has died; rank 0 waits.",
		},
		"the network": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "all_reduce", "", 27)}},
			"Ranks 0 and 1 are in all_reduce (train.py:27) and none makes progress: the network between them is stuck, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
		},
		"the same call at different lines": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "all_reduce", "", 29)}},
			"Ranks 0 and 1 are in all_reduce (train.py:27 and train.py:29) and none makes progress: the network between them is stuck, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
		},
		"groups in different order": {
			Job{World: 3, Ranks: []Rank{
				edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Line = "dist.all_reduce(x, group=tp)" }),
				edit(in(1, "all_reduce", "", 29), func(r *Rank) { r.Line = "dist.all_reduce(x, group=self.dp)" }),
				edit(in(2, "all_reduce", "", 31), func(r *Rank) { r.Line = "dist.all_reduce(x)" }),
			}},
			"Ranks 0-2 are in all_reduce of groups with different names: rank 0 of tp (train.py:27), rank 1 of self.dp (train.py:29), rank 2 of the default group (train.py:31); every rank must call the collectives of all its groups in the same order.",
		},
		"a message that is waited for beside an operation": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "step", 30), func(r *Rank) { r.Line = "w.wait()" }), edit(at(1, "step", 32), func(r *Rank) { r.Line, r.Idle = "dist.irecv(x, 0).wait()", 9*time.Second })}},
			"Rank 1 waits for a message that nobody sends (train.py:32, dist.irecv(x, 0).wait()); rank 0 is at train.py:30 (w.wait()) for 9 s.",
		},
		"a message that nobody takes beside an operation": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "step", 30), func(r *Rank) { r.Line = "dist.isend(x, 1).wait()" }), edit(at(1, "step", 32), func(r *Rank) { r.Line = "w.wait()" })}},
			"Rank 0 waits for its message to be taken, and nobody takes it (train.py:30, dist.isend(x, 1).wait()); rank 1 is at train.py:32 (w.wait()).",
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
		"a key of the program's own": {
			Job{World: 2, Ranks: []Rank{at(0, "wait_for_config", 30), at(1, "serve", 31)}, Waits: []Wait{{Key: "/config", Rank: 0, Age: 9 * time.Second}}},
			"Rank 0 waits for the key /config of the store for 9 s, in wait_for_config (train.py:30); nobody has set it.",
		},
		"a rank that runs twice": {
			Job{World: 3, Ranks: []Rank{in(0, "init_process_group", "", 4), in(1, "init_process_group", "", 4), edit(in(1, "init_process_group", "", 4), func(r *Rank) { r.PID = 202 })}},
			"Rank 1 was started twice, as the processes 101 and 202: give each process a RANK of its own, from 0 to 2.",
		},
		"a child of a rank is no second rank": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "all_reduce", "", 27), edit(at(1, "child", 4), func(r *Rank) { r.PID = 202 })}},
			"Ranks 0 and 1 are in all_reduce (train.py:27) and none makes progress: the network between them is stuck, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
		},
		"a world that is too large": {
			Job{World: 2, Ranks: []Rank{in(0, "init_process_group", "", 4), in(1, "init_process_group", "", 4)}, Waits: []Wait{{Key: "/default_pg/0/0/2", Rank: 0, Age: 9 * time.Second}}},
			"The program wants more ranks than there are: WORLD_SIZE is 2, but ranks 0 and 1 wait for rank 2, which does not exist; compare world_size in the program with the number of workers.",
		},
		"the end of RPC": {
			Job{World: 2, Ranks: []Rank{with(0, pystack.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, pystack.Frame{Func: "main", File: script, Line: 33}), at(1, "load_batch", 12)}},
			"Rank 1 has not called rpc.shutdown (train.py:33); it is in load_batch (train.py:12); rank 0 waits.",
		},
		"a store that is gone": {
			Job{World: 2, Store: "10.0.0.1:29500", StoreTrouble: "nothing listens there", Ranks: []Rank{in(0, "init_process_group", "", 4), in(1, "init_process_group", "", 4)}},
			"Ranks 0 and 1 cannot reach the store at 10.0.0.1:29500: nothing listens there.",
		},
		"a store that is gone, where PyTorch holds the interpreter lock while it connects": {
			Job{World: 1, Store: "10.0.0.1:29500", StoreTrouble: "nothing listens there", Ranks: []Rank{edit(in(0, "init_process_group", "", 4), func(r *Rank) { r.Threads[0].HoldsGIL, r.Main.HoldsGIL = true, true })}},
			"Rank 0 cannot reach the store at 10.0.0.1:29500: nothing listens there.",
		},
		"a store that was not started": {
			Job{World: 2, Store: "a:29500", StoreTrouble: "the name a does not resolve", Ranks: []Rank{in(1, "init_process_group", "", 4)}},
			"Rank 1 cannot reach the store at a:29500: the name a does not resolve; rank 0, which hosts it unless a launcher does, does not run on this host.",
		},
		"a store that only the program names, in a line of a Python that tells no arguments": {
			Job{World: 2, Store: "no-such-host:29511", StoreTrouble: "the name no-such-host does not resolve", Ranks: []Rank{
				edit(told(in(0, "init_process_group", "", 4), 2, "a:1"), func(r *Rank) { r.Line = `dist.init_process_group("gloo", init_method="tcp://no-such-host:29511")` }),
				edit(told(in(1, "init_process_group", "", 4), 2, "a:1"), func(r *Rank) { r.Line = `dist.init_process_group("gloo", init_method="tcp://no-such-host:29511")` }),
			}},
			"Ranks 0 and 1 cannot reach the store at no-such-host:29511: the name no-such-host does not resolve.",
		},
		"a rank that is late for a store that only the program names": {
			Job{World: 2, Store: "a:1", Ranks: []Rank{
				edit(told(in(0, "init_process_group", "", 5), 2, "a:1"), func(r *Rank) { r.Line = `dist.init_process_group("gloo", init_method="tcp://127.0.0.1:23456")` }),
				told(at(1, "load", 12), 2, "a:1"),
			}},
			"Rank 1 has not called init_process_group; it is in load (train.py:12); rank 0 waits.",
		},
		"a store that the program puts together": {
			Job{World: 2, Local: true, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{
				edit(told(in(0, "init_process_group", "", 4), 2, "a:1"), func(r *Rank) { r.Line = `dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}")` }),
				edit(told(in(1, "init_process_group", "", 4), 2, "a:1"), func(r *Rank) { r.Line = `dist.init_process_group("gloo", init_method="tcp://" + host)` }),
			}},
			"Ranks 0 and 1 are in init_process_group (train.py:4) and wait for each other.",
		},
		"two processes that the program gives the same rank": {
			Job{World: 2, Ranks: []Rank{in(0, "init_process_group", "", 4), in(1, "init_process_group", "", 4)}, Waits: []Wait{{Key: "/default_pg/0//cpu//0/1", Rank: 0, Age: 4 * time.Second}, {Key: "/default_pg/0//cpu//0/1", Rank: 1, Age: 4 * time.Second}}},
			"Ranks 0 and 1 are in init_process_group (train.py:4), but none says that it is rank 1: the program probably gives two processes the same rank.",
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
				with(0, pystack.Frame{Func: "all_reduce", File: c10d, Line: 1}, pystack.Frame{Func: "step", File: "/opt/venv/lib/python3.13/site-packages/trainer/loop.py", Line: 7}, pystack.Frame{Func: "_run_code", File: "<frozen runpy>", Line: 88}),
				with(1, pystack.Frame{Func: "Queue.get", File: "/usr/lib/python3.13/queue.py", Line: 1}, pystack.Frame{Func: "load", File: "/opt/venv/lib/python3.13/site-packages/trainer/data.py", Line: 3}, pystack.Frame{Func: "_run_code", File: "<frozen runpy>", Line: 88}),
			}},
			"Rank 1 has not reached all_reduce (loop.py:7); it is in load (data.py:3), in Queue.get of queue.py, and it has no other thread that could fill the queue; rank 0 waits.",
		},
		"a victim that has ended, and a rank that has raised and not ended": {
			Job{World: 2, Ranks: []Rank{
				{Rank: 0, Gone: "lost its connection to another rank: RuntimeError: Connection closed by peer"},
				edit(at(1, "tidy_up", 9), func(r *Rank) { r.Raised = "ValueError: bad batch 17 (step (train.py:3))" }),
			}},
			"Rank 0 lost its connection to another rank: RuntimeError: Connection closed by peer; of the others no rank waits in torch.distributed: rank 1 is in tidy_up (train.py:9); the last that it printed is ValueError: bad batch 17 (step (train.py:3)).",
		},
		"only the store": {
			Job{Waits: []Wait{{Key: "/default_pg/0//cpu//0/3", Rank: 0, Age: 9 * time.Second}}},
			"Rank 3 has not called init_process_group; rank 0 waits for 9 s.",
		},
		"only the store, and a key of the program's own": {
			Job{Waits: []Wait{{Key: "/config", Rank: -1, Age: 9 * time.Second}}},
			"No rank of this job was found, but 1 request waits in its store, the oldest for the key /config for 9 s.",
		},
		"nobody": {Job{}, "No rank of this job was found, and nobody waits in its store."},
	} {
		v := Judge(c.job)
		if v.Sentence != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, v.Sentence, c.want)
		}
		if len(c.job.Ranks) > 0 && len(v.Proof) == 0 {
			t.Errorf("%s: no proof", name)
		}
		if hung := !strings.HasPrefix(c.want, "No") && !strings.Contains(c.want, "at work, but") || strings.HasPrefix(c.want, "No rank waits"); v.Hung != hung {
			t.Errorf("%s: hung is %v", name, v.Hung)
		}
	}
}

// TestAnyEvidence: whatever is seen, there is a sentence and no panic.
func TestAnyEvidence(t *testing.T) {
	t.Parallel()
	ops := []string{"all_reduce", "broadcast", "recv", "send", "init_process_group", "new_group", "barrier"}
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 5))
		j := Job{World: r.IntN(5), Local: r.IntN(2) == 0}
		for range r.IntN(5) {
			rank := r.IntN(4)
			x := at(rank, "load", 1)
			switch r.IntN(4) {
			case 0:
				x = in(rank, ops[r.IntN(len(ops))], fmt.Sprintf("src=%d", r.IntN(5)), 2)
			case 1:
				x = with(rank)
			case 2:
				x = Rank{Rank: rank, Trouble: "no permission"}
			}
			x.Moved = r.IntN(3) == 0
			x.State = []string{"R", "S", "D", "T", ""}[r.IntN(5)]
			if r.IntN(5) == 0 {
				x.Gone = "has ended"
			}
			if r.IntN(3) == 0 {
				x.Dump = &frdump.Dump{}
				for range r.IntN(4) {
					x.Dump.Entries = append(x.Dump.Entries, frdump.Entry{
						Group: strconv.Itoa(r.IntN(2)), Seq: r.IntN(4), Op: ops[r.IntN(2)], Open: r.IntN(2) == 0, Sizes: strconv.Itoa(r.IntN(2)),
					})
				}
			}
			j.Ranks = append(j.Ranks, x)
		}
		for range r.IntN(3) {
			keys := []string{"/default_pg/0//cpu//0/1", "/default_pg/0//2//cpu//0/1", "/mine"}
			j.Waits = append(j.Waits, Wait{Key: keys[r.IntN(3)], Rank: r.IntN(4) - 1, Age: time.Duration(r.IntN(5)) * time.Second})
		}
		if v := Judge(j); v.Sentence == "" {
			t.Fatalf("seed %d: no sentence", seed)
		}
	}
}

// TestProofOfSeveral: ranks that ended in the same way share a line, in the plural.
func TestProofOfSeveral(t *testing.T) {
	t.Parallel()
	v := Judge(Job{World: 4, Ranks: []Rank{in(0, "all_reduce", "", 27), {Rank: 1, Gone: "was killed by SIGKILL"}, {Rank: 2, Gone: "has ended"}, {Rank: 3, Gone: "has ended"}}})
	for _, want := range []string{"rank 1: was killed by SIGKILL", "ranks 2 and 3: have ended"} {
		if !slices.Contains(v.Proof, want) {
			t.Errorf("no %q in %q", want, v.Proof)
		}
	}
}
