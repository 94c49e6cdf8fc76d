// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// TestSentences: collectives, groups and messages.
func TestSentences(t *testing.T) {
	t.Parallel()
	wantSentences(t, map[string]sentence{
		"one rank late": {
			Job{World: 3, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "load_batch", 12), func(r *Rank) { r.Idle = 40 * time.Second }), in(2, "all_reduce", "", 27)}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load_batch (train.py:12) for 40 s; ranks 0 and 2 wait.",
		},
		"one rank late that asks again and again": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "take_lock", 12), func(r *Rank) { r.State, r.Main.State, r.Main.Kernel, r.Sleeps = "R", "R", "", true })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in take_lock (train.py:12), sleeping repeatedly; rank 0 waits.",
		},
		"all ask again and again": {
			Job{World: 2, Ranks: []Rank{at(0, "take_lock", 12), edit(at(1, "take_lock", 13), func(r *Rank) { r.State, r.Main.State, r.Main.Kernel, r.Sleeps = "R", "R", "", true })}},
			"Perhaps not hung: no rank waits in torch.distributed; rank 0 is in take_lock (train.py:12); rank 1 is in take_lock (train.py:13), sleeping repeatedly.",
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
			"Rank 0 calls all_reduce (train.py:27), rank 1 calls broadcast (train.py:55) as number 4 of default_pg.",
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
			"Rank 0 waits for a message from rank 1 (train.py:62), which is in load_batch (train.py:12) and sends none.",
		},
		"a message with another tag, and a rank behind it": {
			Job{World: 3, Ranks: []Rank{in(0, "send", "dst=1 tag=0", 6), in(1, "recv", "src=0 tag=5", 9), in(2, "recv", "src=0 tag=5", 9)}},
			"Rank 0 sends a message to rank 1 (train.py:6), which waits for one from rank 0 (train.py:9), and it does not arrive: it has tag 0, and rank 1 waits for tag 5.",
		},
		"messages that wait for each other": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=1", 62), in(1, "recv", "src=0", 64)}},
			"Ranks 0 and 1 wait for each other: both are in recv (train.py:62 and train.py:64).",
		},
		"a chain of messages": {
			Job{World: 4, Ranks: []Rank{in(0, "recv", "src=1", 18), in(1, "recv", "src=2", 19), in(2, "recv", "src=3", 20), at(3, "load", 21)}},
			"Rank 2 waits for a message from rank 3 (train.py:20), which is in load (train.py:21) and sends none.",
		},
		"a chain of messages to no rank": {
			Job{World: 3, Ranks: []Rank{in(0, "recv", "src=1", 18), in(1, "recv", "src=7", 19)}},
			"Rank 0 waits for a message from rank 1 (train.py:18), which is in recv (train.py:19) and sends none.",
		},
		"a message beside a collective": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "step", 30), func(r *Rank) { r.Line, r.Idle = "request.wait()", 9*time.Second }), in(1, "barrier", "", 40)}},
			"Rank 0 waits for an operation that was started earlier, in step (train.py:30), where rank 1 calls barrier (train.py:40) for 9 s.",
		},
		"a group of some": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Line = "dist.all_reduce(x, group=left)" }), at(1, "load", 12), at(2, "save", 14)}},
			"Ranks 1 and 2 have not reached all_reduce (train.py:27), which only members of its group have to reach; they are in load (train.py:12), save (train.py:14); rank 0 waits.",
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
			"Rank 2 has not reached gather (train.py:27); it is in load (train.py:12); rank 0 waits; rank 1 is starting or exiting.",
		},
		"groups in another order, with PyTorch's store": {
			Job{World: 2, Ranks: []Rank{in(0, "new_group", "", 10), in(1, "new_group", "", 12)}},
			"Ranks 0 and 1 are in new_group (train.py:10 and train.py:12) and wait for each other: every rank must create the same groups in the same order.",
		},
		"asynchronous work": {
			Job{World: 3, Ranks: []Rank{edit(at(0, "step", 30), func(r *Rank) { r.Line = "handle.wait()" }), at(1, "load", 12), edit(at(2, "step", 30), func(r *Rank) { r.Line = "handle.wait()" })}},
			"Rank 1 has not started the operation that is waited for in step (train.py:30); it is in load (train.py:12); ranks 0 and 2 wait.",
		},
		"a backward pass": {
			Job{World: 2, Ranks: []Rank{with(0, stacks.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, stacks.Frame{Func: "Tensor.backward", File: "/usr/lib/python3/dist-packages/torch/_tensor.py"}, stacks.Frame{Func: "step", File: script, Line: 30}), at(1, "load", 12)}},
			"Rank 1 has not reached backward (train.py:30), or has left it without gradients of all parameters; it is in load (train.py:12); rank 0 waits.",
		},
		"a tensor that is still being computed by all": {
			Job{World: 2, Ranks: []Rank{with(0, stacks.Frame{Func: "AsyncCollectiveTensor.wait", File: functional}, stacks.Frame{Func: "AsyncCollectiveTensor.__torch_dispatch__", File: functional}, stacks.Frame{Func: "step", File: script, Line: 30}), at(1, "load", 12)}},
			"Rank 1 has not started the operation that is waited for in step (train.py:30); it is in load (train.py:12); rank 0 waits.",
		},
		"messages that wait for each other in one line": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=1", 62), in(1, "recv", "src=0", 62)}},
			"Ranks 0 and 1 wait for each other: both are in recv (train.py:62).",
		},
		"a backward pass beside a collective": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), with(1, stacks.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, stacks.Frame{Func: "step", File: script, Line: 30})}},
			"Rank 0 calls all_reduce (train.py:27) where rank 1 is in backward (train.py:30), which in DDP needs all ranks: did rank 0 get fewer batches?",
		},
		"different roots": {
			Job{World: 3, Ranks: []Rank{in(0, "broadcast", "src=0 group=None", 27), in(1, "broadcast", "src=1 group=None", 27), edit(in(2, "broadcast", "src=0 group=None", 27), func(r *Rank) { r.Idle = 9 * time.Second })}},
			"Rank 1 calls broadcast with src=1 (train.py:27) where ranks 0 and 2 call broadcast with src=0 (train.py:27) for 9 s.",
		},
		"the model on one rank": {
			Job{World: 2, Ranks: []Rank{with(0, stacks.Frame{Func: "DistributedDataParallel.forward", File: "/usr/lib/python3/dist-packages/torch/nn/parallel/distributed.py"}, stacks.Frame{Func: "evaluate", File: script, Line: 27}), in(1, "barrier", "", 30)}},
			"Rank 0 calls DistributedDataParallel.forward (train.py:27), rank 1 calls barrier (train.py:30); if rank 1 did not get fewer batches, let rank 0 use the model's .module, which needs no other rank.",
		},
		"a checkpoint of one rank": {
			Job{World: 2, Ranks: []Rank{with(0, stacks.Frame{Func: "gather_object", File: c10d}, stacks.Frame{Func: "_DistWrapper.reduce_scatter", File: "/usr/lib/python3/dist-packages/torch/distributed/checkpoint/utils.py"}, stacks.Frame{Func: "save", File: "/usr/lib/python3/dist-packages/torch/distributed/checkpoint/state_dict_saver.py"}, stacks.Frame{Func: "_dcp_method_logger.<locals>.wrapper", File: "/usr/lib/python3/dist-packages/torch/distributed/checkpoint/logger.py"}, stacks.Frame{Func: "main", File: script, Line: 27}), in(1, "barrier", "", 30)}},
			"Rank 0 calls gather_object in checkpoint.save (train.py:27), rank 1 calls barrier (train.py:30).",
		},
		"groups in another order": {
			Job{World: 3, Ranks: []Rank{in(0, "new_group", "", 10), in(1, "new_group", "", 12), in(2, "new_group", "", 12)}, Waits: []Wait{{Key: "/default_pg/0//2//cpu//0/2", Rank: 0, Age: 4 * time.Second}}},
			"Ranks 0-2 are in new_group (train.py:10 and train.py:12) and wait for each other: every rank must create the same groups in the same order.",
		},
		"a function that backward calls": {
			Job{World: 2, Ranks: []Rank{
				with(0, stacks.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, stacks.Frame{Func: "step", File: script, Line: 30}),
				with(1, stacks.Frame{Func: "hook", File: script, Line: 12}, stacks.Frame{Func: "backward", File: "/usr/lib/python3/dist-packages/torch/autograd/__init__.py"}, stacks.Frame{Func: "step", File: script, Line: 30}),
			}},
			"Rank 1 has not finished backward (train.py:30); it is in hook (train.py:12); rank 0 waits.",
		},
		"one is at work in a collective": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Moved = true }), in(1, "barrier", "", 30)}},
			"Not hung: rank 0 is at work, in all_reduce (train.py:27); rank 1 waits in barrier (train.py:30).",
		},
		"a message of anybody": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=None tag=0", 27), edit(at(1, "load", 30), func(r *Rank) { r.Main.Kernel = "hrtimer_nanosleep" })}},
			"Rank 0 waits for a message from any rank (train.py:27), and none sends one: rank 1 is in load (train.py:30), sleeping.",
		},
		"a message with another tag": {
			Job{World: 2, Ranks: []Rank{in(0, "send", "dst=1 tag=1", 27), in(1, "recv", "src=0 tag=2", 30)}},
			"Rank 0 sends a message to rank 1 (train.py:27), which waits for one from rank 0 (train.py:30), and it does not arrive: it has tag 1, and rank 1 waits for tag 2.",
		},
		"a message in another group": {
			Job{World: 2, Ranks: []Rank{in(0, "send", "dst=1 tag=0", 27), in(1, "recv", "src=0 tag=0", 30)}},
			"Rank 0 sends a message to rank 1 (train.py:27), which waits for one from rank 0 (train.py:30), and it does not arrive: are both calls in the same group?",
		},
		"a collective that moves": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Moved = true }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Moved = true })}},
			"Not hung: ranks 0 and 1 are at work, in all_reduce (train.py:27), and no rank waits in torch.distributed.",
		},
		"a message from another rank": {
			Job{World: 3, Ranks: []Rank{in(0, "send", "dst=1", 10), in(1, "recv", "src=2", 12), in(2, "barrier", "", 14)}},
			"Rank 1 waits for a message from rank 2 (train.py:12), which is in barrier (train.py:14), and none has arrived; rank 0 sends a message to rank 1 (train.py:10): is src right?",
		},
		"a ring of messages": {
			Job{World: 3, Ranks: []Rank{in(0, "send", "dst=1", 10), in(1, "send", "dst=2", 10), in(2, "send", "dst=0", 10)}},
			"Ranks 0-2 wait for each other in a cycle: each is in send (train.py:10) with the next; reverse the order in one of them, or use batch_isend_irecv.",
		},
		"new_group, left out": {
			Job{World: 3, Ranks: []Rank{in(0, "new_group", "", 10), edit(in(1, "new_group", "", 10), func(r *Rank) { r.Moved = true }), in(2, "barrier", "", 12)}},
			"Rank 2 is in barrier (train.py:12) where ranks 0 and 1 call new_group (train.py:10): every rank must call new_group for every group, with the same ranks and in the same order, also for groups that it is not in.",
		},
		"new_group": {
			Job{World: 2, Ranks: []Rank{in(0, "new_group", "", 5)}, Waits: []Wait{{Key: "/default_pg/0//2//cpu//0/1", Rank: 0, Age: time.Second / 2}}},
			"Rank 1 has not called new_group number 2; rank 0 waits.",
		},
		"new_group not called": {
			Job{World: 2, Ranks: []Rank{in(0, "new_group", "", 5), at(1, "load_batch", 12)}},
			"Rank 1 has not called new_group; it is in load_batch (train.py:12); rank 0 waits.",
		},
		"the same call at different lines": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "all_reduce", "", 29)}},
			"Ranks 0 and 1 are in all_reduce (train.py:27 and train.py:29) and none makes progress: the network between them is stuck, or their tensors differ in size, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
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
			"Rank 1 waits for a message, and none has arrived (train.py:32, dist.irecv(x, 0).wait()), and rank 0 waits in step (train.py:30, w.wait()) for 9 s.",
		},
		"a message that no rank receives beside an operation": {
			Job{World: 2, Ranks: []Rank{edit(at(0, "step", 30), func(r *Rank) { r.Line = "dist.isend(x, 1).wait()" }), edit(at(1, "step", 32), func(r *Rank) { r.Line = "w.wait()" })}},
			"Rank 0 waits for its message to be received, and no rank has received it (train.py:30, dist.isend(x, 1).wait()), and rank 1 waits in step (train.py:32, w.wait()).",
		},
		"a reference whose value does not come": {
			Job{World: 2, Ranks: []Rank{
				saying(at(0, "main", 20), "x = r.to_here()"),
				inOther(with(1, stacks.Frame{Func: "shutdown", File: rpcAPI}, stacks.Frame{Func: "main", File: script, Line: 33}), stacks.Frame{Func: "build", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: strings.Replace(rpcAPI, "api", "internal", 1)}),
			}},
			"Rank 1 runs a function that was called by RPC and does not return: its thread 777 is in build (train.py:12), reading from a pipe; rank 0 waits in to_here (train.py:20).",
		},
		"futures of calls": {
			Job{World: 2, Ranks: []Rank{
				with(0, stacks.Frame{Func: "wait_all", File: "/usr/lib/python3/dist-packages/torch/futures/__init__.py"}, stacks.Frame{Func: "main", File: script, Line: 20}),
				inOther(with(1, stacks.Frame{Func: "shutdown", File: rpcAPI}, stacks.Frame{Func: "main", File: script, Line: 33}), stacks.Frame{Func: "build", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: strings.Replace(rpcAPI, "api", "internal", 1)}),
			}},
			"Rank 1 runs a function that was called by RPC and does not return: its thread 777 is in build (train.py:12), reading from a pipe; rank 0 waits in main (train.py:20).",
		},
		"calls in a circle": {
			Job{World: 2, Ranks: []Rank{
				inOther(with(0, stacks.Frame{Func: "rpc_sync", File: rpcAPI}, stacks.Frame{Func: "main", File: script, Line: 20}), stacks.Frame{Func: "rpc_sync", File: rpcAPI}, stacks.Frame{Func: "ping", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: strings.Replace(rpcAPI, "api", "internal", 1)}),
				inOther(with(1, stacks.Frame{Func: "shutdown", File: rpcAPI}, stacks.Frame{Func: "main", File: script, Line: 33}), stacks.Frame{Func: "rpc_sync", File: rpcAPI}, stacks.Frame{Func: "ping", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: strings.Replace(rpcAPI, "api", "internal", 1)}),
			}},
			"Ranks 0 and 1 run functions that were called by RPC and themselves wait for RPC calls, in rpc_sync (train.py:12): perhaps a deadlock, with no thread left to serve a call (num_worker_threads); rank 0 waits in rpc_sync (train.py:20), rank 1 waits in shutdown (train.py:33).",
		},
		"the end of RPC": {
			Job{World: 2, Ranks: []Rank{with(0, stacks.Frame{Func: "shutdown", File: "/usr/lib/python3/dist-packages/torch/distributed/rpc/api.py"}, stacks.Frame{Func: "main", File: script, Line: 33}), at(1, "load_batch", 12)}},
			"Rank 1 has not called rpc.shutdown (train.py:33); it is in load_batch (train.py:12); rank 0 waits.",
		},
	})
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
				x.Gone = "has exited"
			}
			if r.IntN(3) == 0 {
				x.Dump = &torchdump.Dump{}
				for range r.IntN(4) {
					x.Dump.Entries = append(x.Dump.Entries, torchdump.Entry{
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
	v := Judge(Job{World: 4, Ranks: []Rank{in(0, "all_reduce", "", 27), {Rank: 1, Gone: "was killed by SIGKILL"}, {Rank: 2, Gone: "has exited"}, {Rank: 3, Gone: "has exited"}}})
	for _, want := range []string{"rank 1: was killed by SIGKILL", "ranks 2 and 3: have exited"} {
		if !slices.Contains(v.Proof, want) {
			t.Errorf("no %q in %q", want, v.Proof)
		}
	}
}
