// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// recorded gives a rank a recorder with these entries.
func recorded(r Rank, members map[string][]int, entries ...torchdump.Entry) Rank {
	r.Dump = &torchdump.Dump{Entries: entries, Members: members}
	return r
}

// entry is a collective of a recorder of gloo.
func entry(group, desc string, seq int, open bool) torchdump.Entry {
	return torchdump.Entry{Group: group, Desc: desc, Seq: seq, Backend: "gloo", Op: "all_reduce", Open: open, Sizes: "[[3]]", Peer: -1}
}

func saying(r Rank, line string) Rank {
	r.Line = line
	return r
}

// TestProven: a sentence does not say more than what was seen tells.
func TestProven(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job      Job
		want     string
		culprits []int
	}{
		"three calls of three ranks": {
			Job{World: 3, Ranks: []Rank{in(0, "all_reduce", "", 27), in(1, "barrier", "", 28), in(2, "broadcast", "src=0", 29)}},
			"Rank 0 calls all_reduce (train.py:27), rank 1 calls barrier (train.py:28), rank 2 calls broadcast (train.py:29).",
			[]int{0, 1, 2},
		},
		"one rank of two": {
			Job{World: 2, Ranks: []Rank{in(0, "broadcast", "src=0", 27), in(1, "broadcast", "src=1", 27)}},
			"Rank 0 calls broadcast with src=0 (train.py:27), rank 1 calls broadcast with src=1 (train.py:27).",
			[]int{0, 1},
		},
		"a rank that has left a reduce with another root": {
			Job{World: 3, Ranks: []Rank{in(0, "reduce", "dst=0", 27), in(1, "reduce", "dst=1", 27), in(2, "barrier", "", 29)}},
			"Rank 0 calls reduce with dst=0 (train.py:27), rank 1 calls reduce with dst=1 (train.py:27); rank 2 is in barrier (train.py:29).",
			[]int{0, 1},
		},
		"a collective of a group beside others": {
			Job{World: 3, Ranks: []Rank{in(0, "barrier", "", 29), saying(in(1, "all_reduce", "", 28), "dist.all_reduce(x, group=g)"), in(2, "barrier", "", 29)}},
			"Rank 1 calls all_reduce of the group g (train.py:28) where ranks 0 and 2 call barrier (train.py:29).",
			[]int{1},
		},
		"a rank that has not come to the world_size of the program": {
			Job{World: 2, Ranks: []Rank{told(at(0, "<module>", 3), 2, "a:1"), told(in(1, "init_process_group", "world_size=4 rank=1", 5), 2, "a:1")}},
			"Rank 0 has not called init_process_group; it is in <module> (train.py:3); rank 1 waits.",
			[]int{0},
		},
		"ranks that may have left a gather": {
			Job{World: 3, Ranks: []Rank{in(0, "gather", "dst=0", 27), at(1, "load", 12), at(2, "save", 14)}},
			"Not all of ranks 1 and 2 have reached gather (train.py:27): rank 1 is in load (train.py:12); rank 2 is in save (train.py:14); rank 0 waits.",
			[]int{1, 2},
		},
		"the only rank that is not in a gather": {
			Job{World: 2, Ranks: []Rank{in(0, "gather", "dst=0", 27), at(1, "load", 12)}},
			"Rank 1 has not reached gather (train.py:27); it is in load (train.py:12); rank 0 waits.",
			[]int{1},
		},
		"a call of which not all is known": {
			Job{World: 2, Ranks: []Rank{saying(in(0, "all_reduce", "", 27), "dist.all_reduce(x, group=tp)"), saying(in(1, "all_reduce", "", 29), "dist.all_reduce(x,...")}},
			"Ranks 0 and 1 are in all_reduce (train.py:27 and train.py:29) and none makes progress: the network between them is stuck, or their tensors differ in size, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.", nil,
		},
		"groups without a name": {
			Job{World: 2, Ranks: []Rank{saying(in(0, "all_reduce", "", 27), "dist.all_reduce( x, dist.ReduceOp.SUM, tp, )"), saying(in(1, "all_reduce", "", 29), "dist.all_reduce(x, SUM, dp)")}},
			"Ranks 0 and 1 are in all_reduce of groups with different names: rank 0 of tp (train.py:27), rank 1 of dp (train.py:29); every rank must call the collectives of all its groups in the same order.",
			[]int{0, 1},
		},
		"a rank that may not be in the group": {
			Job{World: 3, Ranks: []Rank{saying(in(0, "all_reduce", "", 27), "dist.all_reduce(x, SUM, left)"), saying(in(1, "all_reduce", "", 27), "dist.all_reduce(x, SUM, left)"), at(2, "save", 14)}},
			"Rank 2 has not reached all_reduce (train.py:27), which only members of its group have to reach; it is in save (train.py:14); ranks 0 and 1 wait.",
			[]int{2},
		},
		"ranks that were not seen": {
			Job{World: 4, Ranks: []Rank{in(0, "barrier", "", 27), in(1, "barrier", "", 27)}},
			"Ranks 0 and 1 are in barrier (train.py:27) and none makes progress: the network between them is stuck, or they are in different groups, or one is a call ahead; flight recorder dumps would tell; ranks 2 and 3 of the world of 4 were not seen.", nil,
		},
		"a message of a rank that waits for one that it may have sent": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=1 tag=7", 30), saying(at(1, "step", 40), "sent.wait()")}},
			"Rank 0 waits for a message from rank 1 (train.py:30), which waits in step (train.py:40) for an operation that was started earlier, and none has arrived.",
			[]int{1},
		},
		"a message of a rank that may have sent another one": {
			Job{World: 2, Ranks: []Rank{in(0, "barrier", "", 40), in(1, "recv", "src=0 tag=8", 30)}},
			"Rank 1 waits for a message from rank 0 (train.py:30), which is in barrier (train.py:40), and none has arrived.",
			[]int{0},
		},
		"a message of any rank, of which some were not seen": {
			Job{World: 3, Ranks: []Rank{in(0, "recv", "src=None", 30), at(1, "load", 12)}},
			"Rank 0 waits for a message from any rank (train.py:30), and none of those that were seen sends one: rank 1 is in load (train.py:12).",
			[]int{1},
		},
		"a message of a rank of a group": {
			Job{World: 2, Ranks: []Rank{in(0, "recv", "src=None tag=0 group_src=1", 30), at(1, "load", 12)}},
			"No rank makes progress: rank 0 is in recv (train.py:30); rank 1 is in load (train.py:12).", nil,
		},
		"a rank that does not run, and others that wait for a key": {
			Job{World: 3, Local: true, Store: "127.0.0.1:29500", Ranks: []Rank{at(0, "finish", 30), edit(at(2, "finish", 30), func(r *Rank) {
				r.Main.Kernel, r.Object = "poll_schedule_timeout.constprop.0", "127.0.0.1:29500"
			})}},
			"Rank 2 waits for the store, in finish (train.py:30): probably for a key that no rank has set; rank 1 is not running.", nil,
		},
		"a message with another tag, beside a barrier": {
			Job{World: 3, Ranks: []Rank{in(0, "send", "dst=1 tag=3", 30), in(1, "recv", "src=0 tag=4", 31), in(2, "barrier", "", 32)}},
			"Rank 0 sends a message to rank 1 (train.py:30), which waits for one from rank 0 (train.py:31), and it does not arrive: it has tag 3, and rank 1 waits for tag 4; rank 2 waits.",
			[]int{0, 1},
		},
		"a ring of messages that were started": {
			Job{World: 2, Ranks: []Rank{saying(at(0, "step", 30), "w = dist.irecv(x, 1); w.wait(); dist.send(x, 1)"), saying(at(1, "step", 30), "w = dist.irecv(x, 1); w.wait(); dist.send(x, 1)")}},
			"Ranks 0 and 1 wait for sends or receives that have no matching partner (train.py:30).",
			[]int{0, 1},
		},
		"a batch of messages beside an operation": {
			Job{World: 2, Ranks: []Rank{saying(at(0, "step", 30), "for w in dist.batch_isend_irecv(ops): w.wait()"), saying(at(1, "step", 40), "w.wait()")}},
			"Rank 0 waits for messages, and not all of them have been sent or received (train.py:30, for w in dist.batch_isend_irecv(ops): w.wait()), and rank 1 waits in step (train.py:40, w.wait()).",
			[]int{0, 1},
		},
		"operations of which nothing is known": {
			Job{World: 2, Ranks: []Rank{saying(at(0, "step", 30), "w.wait()"), saying(at(1, "step", 30), "w.wait()")}},
			"Ranks 0 and 1 are in step (train.py:30) and none makes progress: the network between them is stuck, or their tensors differ in size, or they wait for sends or receives that have no matching partner, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
			nil,
		},
		"two calls in a line": {
			Job{World: 2, Ranks: []Rank{saying(in(0, "all_reduce", "", 30), "dist.all_reduce(x, group=a); dist.all_reduce(x, group=b)"), saying(in(1, "all_reduce", "", 40), "dist.all_reduce(x, group=b); dist.all_reduce(x, group=a)")}},
			"Ranks 0 and 1 are in all_reduce (train.py:30 and train.py:40) and none makes progress: the network between them is stuck, or their tensors differ in size, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
			nil,
		},
		"operations that were started earlier, waited for in different lines": {
			Job{World: 3, Ranks: []Rank{saying(at(0, "step", 30), "a.wait()"), saying(at(1, "step", 40), "b.wait()"), in(2, "barrier", "", 50)}},
			"Ranks 0 and 1 wait for an operation that was started earlier, in step (train.py:30 and train.py:40), where rank 2 calls barrier (train.py:50).",
			[]int{0, 1},
		},
		"connections without an answer": {
			Job{World: 3, Store: "10.0.0.1:29500", Ranks: []Rank{in(0, "all_reduce", "", 27), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Dials = []string{"10.0.0.1:33449"} }), edit(in(2, "all_reduce", "", 27), func(r *Rank) { r.Dials = []string{"10.0.0.7:1", "10.0.0.1:33449"} })}},
			"Ranks 1 and 2 get no answer from 10.0.0.1:33449, in all_reduce (train.py:27): a firewall is between them, or no host has this address, or the host is overloaded; rank 0 waits.", nil,
		},
		"connections that a rank does not answer": {
			Job{World: 3, Store: "10.0.0.1:29500", Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Listens = []string{"10.0.0.1:5", "10.0.0.1:33449"} }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Dials = []string{"10.0.0.1:33449"} }), edit(in(2, "all_reduce", "", 27), func(r *Rank) { r.Dials = []string{"10.0.0.1:33449"} })}},
			"Ranks 1 and 2 get no answer from 10.0.0.1:33449, where rank 0 listens, in all_reduce (train.py:27): a firewall is between them, or rank 0 does not accept connections; rank 0 waits.",
			[]int{0},
		},
		"one connection that a rank does not answer": { // NCCL's first collective: only one rank has to reach the other
			Job{World: 2, Store: "10.0.0.1:29500", Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Listens = []string{"10.0.0.1:33449"} }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Dials = []string{"10.0.0.1:33449"} })}},
			"Rank 1 gets no answer from 10.0.0.1:33449, where rank 0 listens, in all_reduce (train.py:27): a firewall is between them, or rank 0 does not accept connections; rank 0 waits.",
			[]int{0},
		},
		"connections to a bridge, and another host has one too": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Listens = "a", []string{"172.17.0.1:33449"} }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "b", []string{"172.17.0.1:33449"} }), edit(in(2, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "b", []string{"172.17.0.1:33449"} })}},
			"Ranks 1 and 2 get no answer from 172.17.0.1:33449, in all_reduce (train.py:27): a firewall is between them, or no host has this address, or the host is overloaded; rank 0 waits.",
			nil,
		},
		"connections to a bridge of the same host": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Listens = "a", []string{"172.17.0.1:33449"} }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "a", []string{"172.17.0.1:33449"} }), edit(in(2, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "a", []string{"172.17.0.1:33449"} })}},
			"Ranks 1 and 2 get no answer from 172.17.0.1:33449, where rank 0 listens, in all_reduce (train.py:27): a firewall is between them, or rank 0 does not accept connections; rank 0 waits.",
			[]int{0},
		},
		"connections to another host": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Listens = "a", []string{"10.0.0.1:33449"} }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "b", []string{"10.0.0.1:33449"} }), edit(in(2, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "b", []string{"10.0.0.1:33449"} })}},
			"Ranks 1 and 2 get no answer from 10.0.0.1:33449, where rank 0 listens, in all_reduce (train.py:27): a firewall is between them, or rank 0 does not accept connections; rank 0 waits.",
			[]int{0},
		},
		"connections within a host, and another host listens": {
			Job{World: 3, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Listens = "a", []string{"127.0.0.1:33449"} }), edit(in(1, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "b", []string{"127.0.0.1:33449"} }), edit(in(2, "all_reduce", "", 27), func(r *Rank) { r.Host, r.Dials = "b", []string{"127.0.0.1:33449"} })}},
			"Ranks 1 and 2 get no answer from 127.0.0.1:33449, in all_reduce (train.py:27): a firewall is between them, or no host has this address, or the host is overloaded; rank 0 waits.",
			nil,
		},
		"a store that does not answer": {
			Job{World: 2, Store: "10.0.0.1:29500", Ranks: []Rank{edit(in(1, "init_process_group", "", 5), func(r *Rank) { r.Dials = []string{"10.0.0.1:29500"} })}},
			"Rank 1 gets no answer from the store at 10.0.0.1:29500, in init_process_group (train.py:5): a firewall is between them, or no host has this address, or the host is overloaded.", nil,
		},
		"a thread that reports somewhere": {
			Job{World: 2, Ranks: []Rank{edit(in(0, "all_reduce", "", 27), func(r *Rank) { r.Dials = []string{"10.9.9.9:443"} }), at(1, "load_batch", 12)}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in load_batch (train.py:12); rank 0 waits.",
			[]int{1},
		},
		"a rank that dials somebody else": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "", 27), edit(at(1, "download", 12), func(r *Rank) { r.Dials = []string{"10.9.9.9:443"} })}},
			"Rank 1 has not reached all_reduce (train.py:27); it is in download (train.py:12); rank 0 waits.",
			[]int{1},
		},
		"a rank that the program gives twice": {
			Job{World: 3, Ranks: []Rank{told(in(0, "init_process_group", "world_size=3 rank=0", 5), 3, "a:1"), told(in(1, "init_process_group", "world_size=3 rank=1", 5), 3, "a:1"), told(in(2, "init_process_group", "world_size=3 rank=1", 5), 3, "a:1")}},
			"Ranks 1 and 2 call init_process_group with rank=1 (train.py:5): give each process its own rank.",
			[]int{1, 2},
		},
		"ranks that wait for a function at different places": {
			Job{World: 3, Ranks: []Rank{
				with(0, stacks.Frame{Func: "rpc_sync", File: strings.Replace(c10d, "distributed_c10d", "rpc/api", 1)}, stacks.Frame{Func: "main", File: script, Line: 20}),
				inOther(at(1, "main", 33), stacks.Frame{Func: "load", File: script, Line: 12}, stacks.Frame{Func: "_run_function", File: strings.Replace(c10d, "distributed_c10d", "rpc/internal", 1)}),
				with(2, stacks.Frame{Func: "shutdown", File: strings.Replace(c10d, "distributed_c10d", "rpc/api", 1)}, stacks.Frame{Func: "main", File: script, Line: 33}),
			}},
			"Rank 1 runs a function that was called by RPC and does not return: its thread 777 is in load (train.py:12), reading from a pipe; rank 0 waits in rpc_sync (train.py:20), rank 2 waits in shutdown (train.py:33).",
			[]int{1},
		},
		"a key that a rank would have set that has ended": {
			Job{World: 3, Ranks: []Rank{at(0, "finish", 30), {Rank: 1, Gone: Succeeded}, at(2, "finish", 30)}, Waits: []Wait{{Key: "/done1", Rank: 0, Age: 9 * time.Second}, {Key: "/done1", Rank: 2, Age: 9 * time.Second}}},
			"Ranks 0 and 2 wait for the key /done1 in the store for 9 s, in finish (train.py:30); no rank has set it; rank 1 has exited with code 0.", nil,
		},
		"tensors of different sizes": {
			Job{World: 3, Ranks: []Rank{in(0, "all_reduce", "tensor=float32[4,2] async_op=false", 27), in(1, "all_reduce", "tensor=float32[5] async_op=false", 27), in(2, "all_reduce", "tensor=float32[8] async_op=false", 27)}},
			"Rank 1 calls all_reduce (train.py:27) with 5 elements of float32 where ranks 0 and 2 call all_reduce (train.py:27) with 8 elements of float32.",
			[]int{1},
		},
		"tensors of different types": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "tensor=float32[8]", 27), in(1, "all_reduce", "tensor=float64[8]", 27)}},
			"Rank 0 calls all_reduce (train.py:27) with 8 elements of float32, rank 1 calls all_reduce (train.py:27) with 8 elements of float64.",
			[]int{0, 1},
		},
		"tensors that fit": {
			Job{World: 2, Ranks: []Rank{in(0, "all_reduce", "tensor=float32[4,2]", 27), in(1, "all_reduce", "tensor=float32[8]", 27)}},
			"Ranks 0 and 1 are in all_reduce (train.py:27) and none makes progress: the network between them is stuck, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.", nil,
		},
		"two pairs that have nothing to do with each other": {
			Job{World: 4, Ranks: []Rank{
				recorded(in(0, "all_reduce", "", 27), nil, entry("1", "left", 1, true)), recorded(at(1, "load", 12), nil, entry("0", "default_pg", 1, false)),
				recorded(in(2, "all_reduce", "", 27), nil, entry("2", "right", 1, true)), recorded(at(3, "load", 12), nil, entry("0", "default_pg", 1, false)),
			}},
			"Ranks 1-3 have not reached all_reduce number 1 of left, which only members of its group have to reach; they are in all_reduce (train.py:27), load (train.py:12); rank 0 waits.",
			[]int{1, 2, 3},
		},
		"a group whose members are known": {
			Job{World: 4, Ranks: []Rank{
				recorded(in(0, "all_reduce", "", 27), map[string][]int{"1": {0, 1}}, entry("1", "left", 1, true)), recorded(at(1, "load", 12), nil),
				recorded(in(2, "all_reduce", "", 27), map[string][]int{"2": {2, 3}}, entry("2", "right", 1, true)), recorded(in(3, "all_reduce", "", 27), nil, entry("2", "right", 1, true)),
			}},
			"Rank 1 has not reached all_reduce number 1 of left; it is in load (train.py:12); rank 0 waits.",
			[]int{1},
		},
		"a rank that waits in another group": {
			Job{World: 3, Ranks: []Rank{
				recorded(in(0, "all_reduce", "", 27), nil, entry("0", "default_pg", 2, true), entry("1", "tail", 0, false)),
				recorded(in(1, "all_reduce", "", 29), nil, entry("0", "default_pg", 1, false), entry("1", "tail", 2, true)),
				recorded(at(2, "load", 12), nil, entry("0", "default_pg", 2, true), entry("1", "tail", 1, false)),
			}},
			"Ranks 0 and 1 wait for each other in different groups: rank 0 in all_reduce of default_pg (train.py:27), rank 1 in all_reduce of tail (train.py:29).",
			[]int{0, 1},
		},
	} {
		v := Judge(c.job)
		if v.Sentence != c.want || !slices.Equal(v.Culprits, c.culprits) {
			t.Errorf("%s:\n got %s %v\nwant %s %v", name, v.Sentence, v.Culprits, c.want, c.culprits)
		}
	}
}

// TestBehind: of two ranks that wait, each in its own group, the one that waits for a rank that does not is explained.
func TestBehind(t *testing.T) {
	t.Parallel()
	v := Judge(Job{World: 3, Ranks: []Rank{
		recorded(in(0, "all_reduce", "", 27), nil, entry("0", "default_pg", 2, true)),
		recorded(in(1, "all_reduce", "", 29), map[string][]int{"1": {1, 2}}, entry("0", "default_pg", 1, false), entry("1", "tail", 2, true)),
		recorded(at(2, "load", 12), nil, entry("0", "default_pg", 1, false), entry("1", "tail", 1, false)),
	}})
	if want := "Rank 2 has not reached all_reduce number 2 of tail; it is in load (train.py:12); rank 1 waits."; v.Sentence != want {
		t.Errorf("%s\nwant %s", v.Sentence, want)
	}
}

// TestMovingRank: a rank that gets on with its own work while others wait for it is told, so that the watch does not take the job for hung.
func TestMovingRank(t *testing.T) {
	t.Parallel()
	moved := func(r *Rank) { r.Moved = true }
	v := Judge(Job{World: 3, Ranks: []Rank{in(0, "barrier", "", 27), edit(at(1, "evaluate", 12), moved), edit(in(2, "init_process_group", "", 5), moved)}})
	if v.Hung || !v.Still || !slices.Equal(v.Moving, []int{1}) { // rank 2 asks the store again and again
		t.Errorf("%v %v: %s", v.Hung, v.Moving, v.Sentence)
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
