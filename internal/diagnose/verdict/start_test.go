// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// TestSentencesOfTheStart: ranks that have not met: stores, worlds, init_process_group.
func TestSentencesOfTheStart(t *testing.T) {
	t.Parallel()
	wantSentences(t, map[string]sentence{
		"a restart with the store of the attempt before": {
			Job{World: 2, OldKeys: true, Ranks: []Rank{edit(in(0, "init_process_group", "", 5), func(r *Rank) { r.Idle = 20 * time.Second }), in(1, "init_process_group", "", 5)}},
			"Ranks 0 and 1 are in init_process_group (train.py:5) and wait for each other for 20 s: the store still has keys from an earlier attempt, and a rank that started early has probably read the address of a process that has exited; TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 makes torchrun start each attempt with an empty store.",
		},
		"a rank that is about to tell its address": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "init_process_group", "", 5), func(r *Rank) { r.State, r.Main.State = "R", "R" }), in(1, "init_process_group", "", 5)}, Waits: []Wait{{Key: "/default_pg/0//cpu//0/0", Rank: 1, Age: 2 * time.Second}}},
			"Not hung: rank 0 is at work, in init_process_group (train.py:5); rank 1 waits in init_process_group (train.py:5).",
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
				r.Main.Frames = append([]stacks.Frame{{Func: "_create_c10d_store", File: strings.Replace(c10d, "distributed_c10d", "rendezvous", 1), Line: 1, Args: `hostname="a" port=2 rank=1 world_size=2`}}, r.Main.Frames...)
			})}},
			"Rank 1 uses the store at a:2 where rank 0 uses a:1: all ranks must have the same MASTER_ADDR and MASTER_PORT; ranks 0 and 1 wait in init_process_group (train.py:5).",
		},
		"another port": {
			Job{World: 2, Local: true, Store: "a:1", Orphans: []Stray{{1, 107, "a:2"}}, Ranks: []Rank{told(in(0, "init_process_group", "", 5), 2, "a:1")}},
			"Rank 0 uses the store at a:1, and rank 1 of the same program (process 107) uses a:2: all ranks must have the same MASTER_ADDR and MASTER_PORT; rank 0 waits in init_process_group (train.py:5).",
		},
		"ranks on other hosts": {
			Job{World: 3, Ranks: []Rank{in(0, "init_process_group", "", 5), in(1, "init_process_group", "", 5)}},
			"Ranks 0 and 1 are in init_process_group (train.py:5) and wait for others; rank 2 of the world of 3 does not run on this host.",
		},
		"a store that waits with the lock": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "init_process_group", "", 5), func(r *Rank) { r.Threads[0].HoldsGIL, r.Threads[0].Kernel = true, "hrtimer_nanosleep" }), at(1, "load", 12)}},
			"Rank 1 has not called init_process_group; it is in load (train.py:12); rank 0 waits.",
		},
		"PyTorch's store": {
			Job{World: 2, Store: "localhost:29500", Ranks: []Rank{at(0, "load", 12), edit(at(1, "config", 30), func(r *Rank) {
				r.Main.Kernel, r.Object, r.Idle = "poll_schedule_timeout.constprop.0", "127.0.0.1:29500", 9*time.Second
			})}},
			"Rank 1 waits for the store, in config (train.py:30) for 9 s: probably for a key that no rank has set.",
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
				told(with(0, stacks.Frame{Func: "_create_c10d_store", File: strings.Replace(c10d, "distributed_c10d", "rendezvous", 1), Line: 1, Args: `hostname="a" port=2 rank=0 world_size=4`}, stacks.Frame{Func: "init_process_group", File: c10d, Args: `init_method="tcp://a:2" world_size=4`}, stacks.Frame{Func: "main", File: script, Line: 5}), 2, "a:1"),
				told(in(1, "init_process_group", `init_method="tcp://a:2" world_size=4 rank=1`, 5), 2, "a:1"),
			}},
			"The program wants more ranks than there are: WORLD_SIZE is 2, but it calls init_process_group with world_size=4 (train.py:5); ranks 0 and 1 wait.",
		},
		"a key that a late rank waits for": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), at(1, "load", 30)}, Waits: []Wait{{Key: "/config", Rank: 1, Age: 9 * time.Second}}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load (train.py:30), for the key /config in the store, which no rank has set; rank 0 waits.",
		},
		"a server that does not answer": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, stacks.Frame{Func: "urlopen", File: "/usr/lib/python3.13/urllib/request.py"}, stacks.Frame{Func: "download", File: script, Line: 9}), func(r *Rank) { r.Main.Kernel, r.Object = "wait_woken", "10.0.0.5:443" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in download (train.py:9), in urlopen of request.py, reading from 10.0.0.5:443; rank 0 waits.",
		},
		"a name": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(with(1, stacks.Frame{Func: "getaddrinfo", File: "/usr/lib/python3.13/socket.py"}, stacks.Frame{Func: "urlopen", File: "/usr/lib/python3.13/urllib/request.py"}, stacks.Frame{Func: "download", File: script, Line: 9}), func(r *Rank) { r.Main.Kernel = "poll_schedule_timeout.constprop.0" })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in download (train.py:9), in urlopen of request.py, resolving a host name; rank 0 waits.",
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
		"no store": {
			Job{World: 2, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{told(in(1, "init_process_group", "init_method=None", 5), 2, "a:1")}},
			"Rank 1 cannot reach the store at a:1: nothing listens there; rank 0, which hosts it unless a launcher does, does not run on this host.",
		},
		"no store, since rank 0 has not come to it": {
			Job{World: 2, Store: "a:1", StoreTrouble: "nothing listens there", Ranks: []Rank{told(edit(at(0, "load", 26), func(r *Rank) { r.Main.Kernel, r.Idle = "hrtimer_nanosleep", 8*time.Second }), 2, "a:1"), told(in(1, "init_process_group", "init_method=None", 5), 2, "a:1")}},
			"Rank 1 cannot reach the store at a:1: nothing listens there; rank 0, which hosts it unless a launcher does, has not called init_process_group: it is in load (train.py:26), sleeping for 8 s.",
		},
		"before init": {
			Job{World: 2, Ranks: []Rank{
				with(0, stacks.Frame{Func: "_create_c10d_store", File: "/usr/lib/python3/dist-packages/torch/distributed/rendezvous.py", Line: 215}, stacks.Frame{Func: "init_process_group", File: c10d, Line: 2546}, stacks.Frame{Func: "<module>", File: script, Line: 5}),
				at(1, "load_batch", 12),
			}},
			"Rank 1 has not called init_process_group; it is in load_batch (train.py:12); rank 0 waits.",
		},
		"before init, on another host": {
			Job{World: 2, Ranks: []Rank{in(0, "init_process_group", "", 5)}, Waits: []Wait{{Key: "/default_pg/0//cpu//0/1", Rank: 0, Age: 30 * time.Second}}},
			"Rank 1 has not called init_process_group; rank 0 waits for 30 s.",
		},
		"a rank that has come and died": {
			Job{World: 3, Ranks: []Rank{in(0, "init_process_group", "", 5)}, Waits: []Wait{
				{Key: "/default_pg/0//cpu//0/2", Rank: 0, Age: 30 * time.Second},
				{Key: "/cohort/group/0/3/0/rank 1, which joined and then died", Rank: 0, Age: 20 * time.Second},
			}},
			"Rank 2 has not called init_process_group; rank 1 joined and then died; rank 0 waits for 30 s.",
		},
		"a Go rank that has come and died": {
			Job{World: 3, Waits: []Wait{
				{Key: "cohort/group/0/3/0/rank/2", Rank: 0, Age: 30 * time.Second},
				{Key: "cohort/group/0/3/0/rank 1, which joined and then died", Rank: 0, Age: 20 * time.Second},
			}},
			"Rank 2 has not joined the group; rank 1 joined and then died; rank 0 waits for 30 s.",
		},
		"a Go rank that has come to a sub-group and died": { // the ranks there are others than in the world
			Job{World: 8, Ranks: []Rank{in(0, "init_process_group", "", 5), in(2, "init_process_group", "", 5)}, Waits: []Wait{
				{Key: "cohort/group/0/8/0/sub/1/3161/3/0/rank/2", Rank: 0, Age: 30 * time.Second},
				{Key: "cohort/group/0/8/0/sub/1/3161/3/0/rank 1, which joined and then died", Rank: 0, Age: 20 * time.Second},
			}},
			"In a subgroup, rank 2 has not joined; rank 1 joined and then died; ranks 0 and 2 wait for 30 s.",
		},
		"a Go rank that has come to a part of a split and died": {
			Job{World: 8, Waits: []Wait{
				{Key: "a/cohort/group/x/3161/3/0123456789abcdef/1/rank/2", Rank: 4, Age: 30 * time.Second},
				{Key: "a/cohort/group/x/3161/3/0123456789abcdef/1/ranks 0,1, which joined and then died", Rank: 4, Age: 20 * time.Second},
			}},
			"In a subgroup, rank 2 has not joined; ranks 0,1 joined and then died; rank 4 waits for 30 s.",
		},
		"a key of the program's own": {
			Job{World: 2, Ranks: []Rank{at(0, "wait_for_config", 30), at(1, "serve", 31)}, Waits: []Wait{{Key: "/config", Rank: 0, Age: 9 * time.Second}}},
			"Rank 0 waits for the key /config in the store for 9 s, in wait_for_config (train.py:30); no rank has set it.",
		},
		"a rank that runs twice": {
			Job{World: 3, Ranks: []Rank{in(0, "init_process_group", "", 4), in(1, "init_process_group", "", 4), edit(in(1, "init_process_group", "", 4), func(r *Rank) { r.PID = 202 })}},
			"Rank 1 was started twice, as the processes 101 and 202: give each process its own RANK, from 0 to 2.",
		},
		"a child of a rank is not a second rank": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "all_reduce", "", 27), edit(at(1, "child", 4), func(r *Rank) { r.PID = 202 })}},
			"Ranks 0 and 1 are in all_reduce (train.py:27) and none makes progress: the network between them is stuck, or their tensors differ in size, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
		},
		"a world that is too large": {
			Job{World: 2, Ranks: []Rank{in(0, "init_process_group", "", 4), in(1, "init_process_group", "", 4)}, Waits: []Wait{{Key: "/default_pg/0/0/2", Rank: 0, Age: 9 * time.Second}}},
			"The program wants more ranks than there are: WORLD_SIZE is 2, but ranks 0 and 1 wait for rank 2, which does not exist; compare world_size in the program with the number of workers.",
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
		"only the store": {
			Job{Waits: []Wait{{Key: "/default_pg/0//cpu//0/3", Rank: 0, Age: 9 * time.Second}}},
			"Rank 3 has not called init_process_group; rank 0 waits for 9 s.",
		},
		"only the store, and a key of the program's own": {
			Job{Waits: []Wait{{Key: "/config", Rank: -1, Age: 9 * time.Second}}},
			"No rank of this job was found, but 1 request waits in its store, the oldest for the key /config for 9 s.",
		},
		"no rank": {Job{}, "No rank of this job was found, and no client waits in its store."},
	})
}
