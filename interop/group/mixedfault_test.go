// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// survivorSource is a PyTorch rank that reduces until something breaks, says how long that took after it was told so, and goes on in a
// group of all but one.
const survivorSource = `
import sys, datetime, torch, torch.distributed as dist
rank, size, port, victim, limit = map(int, sys.argv[1:6])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=limit))
dist.all_reduce(torch.ones(5))
print("ready", flush=True)
try:
    while True:
        dist.all_reduce(torch.ones(5))
except RuntimeError as e:
    print("error", str(e).replace("\n", " ")[:200], flush=True)
rest = dist.new_group([r for r in range(size) if r != victim], timeout=datetime.timedelta(seconds=60), use_local_synchronization=True)
x = torch.tensor([10.0**rank])
dist.all_reduce(x, group=rest)
print("sum", int(x[0]), flush=True)
sys.stdin.readline()
`

// mixedSurvivors returns a world of four with PyTorch ranks of two versions and two Go ranks, of which the second may
// have a process of its own.
func mixedSurvivors(order []int) (w world, gos, torches [2]int) {
	gos, torches = [2]int{order[0], order[1]}, [2]int{order[2], order[3]}
	w = world{size: 4, goRanks: gos[:], torches: map[int]*torchtest.Torch{torches[0]: torchtest.V26, torches[1]: torchtest.Newest}}
	return w, gos, torches
}

// TestMixedSurvivors: in worlds whose PyTorch ranks are of two versions, a rank of each kind is killed or stopped. The
// Go ranks end with an error that names it, within the bound, PyTorch's with one, and those that are left form the next
// group.
func TestMixedSurvivors(t *testing.T) {
	t.Parallel()
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	for _, order := range [][]int{{0, 1, 2, 3}, {0, 2, 3, 1}, {3, 1, 2, 0}, {2, 3, 0, 1}} {
		for _, fault := range []string{"kill 2.6", "kill newest", "stop 2.6", "stop newest", "kill go", "stop go"} {
			w, gos, torches := mixedSurvivors(order)
			victim := map[string]int{"2.6": torches[0], "newest": torches[1], "go": gos[1]}[strings.Fields(fault)[1]]
			if victim == 0 {
				continue // it hosts the store
			}
			t.Run(fmt.Sprintf("%v,%s", w, fault), func(t *testing.T) {
				t.Parallel()
				const limit = 30                 // seconds, of PyTorch's operations, of which the first waits for connections
				const liveness = 5 * time.Second // is enough to learn of an end
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
				defer cancel()
				var last []group.OpOption
				if strings.HasPrefix(fault, "stop") {
					last = append(last, group.WithTimeout(liveness)) // nothing else ends it
				}
				w.options = append(w.options, group.WithTimeout(2*time.Minute), group.WithConnectTimeout(2*time.Minute))
				port := testkit.FreePort(t)
				procs := w.startTorch(t, nil, port, survivorSource, strconv.Itoa(victim), strconv.Itoa(limit))
				signal := func(s syscall.Signal) { procs[victim].Signal(s) }
				if victim == gos[1] {
					cmd := startChild(t, victim, w.size, port)
					signal = func(s syscall.Signal) { _ = cmd.Process.Signal(s) }
					w.goRanks = gos[:1]
				}
				groups := w.joinGo(ctx, t, port)
				var rest []cohort.Rank
				want := 0
				for r, power := 0, 1; r < w.size; r, power = r+1, 10*power {
					if r != victim {
						rest = append(rest, cohort.Rank(r))
						want += power
					}
				}
				ready := make(chan struct{})
				var first, all sync.WaitGroup
				for _, r := range w.goRanks {
					first.Add(1)
					all.Go(func() {
						g := groups[r]
						x := make([]float32, 5)
						err := group.AllReduceSlice(ctx, g, x, group.Sum)
						first.Done()
						<-ready
						began := time.Now()
						for err == nil {
							err = group.AllReduceSlice(ctx, g, x, group.Sum, last...)
						}
						took := time.Since(began)
						t.Logf("rank %d after %v: %v", r, took, err)
						e := new(cohort.Error)
						if !errors.As(err, &e) || took > 5*liveness {
							t.Errorf("rank %d: after %v: %v", r, took, err)
						}
						if strings.HasPrefix(fault, "kill") && (e.Code != cohort.PeerLost || e.Rank != cohort.Rank(victim)) {
							t.Errorf("rank %d does not say that %d was lost: %v", r, victim, err)
						}
						if strings.HasPrefix(fault, "stop") &&
							(e.Code != cohort.DeadlineExceeded || !strings.Contains(err.Error(), "it waits for rank") ||
								!strings.Contains(err.Error(), "see what the PyTorch ranks say")) {
							t.Errorf("rank %d does not say for whom it waited: %v", r, err)
						}
						next, err := g.NewGroup(ctx, rest, group.WithLocalSync())
						if err != nil {
							t.Errorf("rank %d: the next group: %v", r, err)
							return
						}
						defer func() { _ = next.Close() }()
						_ = g.Close()
						x = []float32{1}
						for range r {
							x[0] *= 10
						}
						if err := group.AllReduceSlice(ctx, next, x, group.Sum); err != nil || int(x[0]) != want {
							t.Errorf("rank %d: the next group: %v, %v, want %d", r, x, err, want)
						}
					})
				}
				first.Wait()
				for _, p := range procs {
					p.Expect(t, "ready")
				}
				if strings.HasPrefix(fault, "kill") {
					signal(syscall.SIGKILL)
				} else {
					signal(syscall.SIGSTOP)
				}
				close(ready)
				for _, r := range torches {
					if r == victim {
						continue
					}
					if line := procs[r].Line(t); !strings.HasPrefix(line, "error ") {
						t.Errorf("rank %d: %q", r, line)
					}
					procs[r].Expect(t, fmt.Sprint("sum ", want))
				}
				all.Wait()
			})
		}
	}
}

// scatterSource is a PyTorch rank that scatters a sum, and then a maximum.
const scatterSource = `
import datetime, sys
import torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
    out, x = torch.zeros(1), torch.full((size,), float(rank + 1))
    try:
        dist.reduce_scatter_tensor(out, x, op)
        print(out.item(), flush=True)
    except RuntimeError as e:
        print("error", flush=True)
`

// TestMixedVersionsUnknown: PyTorch ranks of two versions, one of which hosts the store, scatter a maximum: the older
// one takes it for a sum. A Go rank that was not given the versions refuses, and says how to tell it, instead of
// believing that all are like the host.
func TestMixedVersionsUnknown(t *testing.T) {
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	for _, torches := range []map[int]*torchtest.Torch{
		{0: torchtest.Newest, 1: torchtest.V26},
		{0: torchtest.V26, 1: torchtest.Newest},
		{1: torchtest.V26, 2: torchtest.Newest},
		{0: torchtest.Newest, 1: torchtest.Newest}, // which cannot be told apart from the first
	} {
		w := world{size: 3, torches: torches, unversioned: true}
		for r := range w.size {
			if torches[r] == nil {
				w.goRanks = append(w.goRanks, r)
			}
		}
		t.Run(w.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			port := testkit.FreePort(t)
			procs := w.startTorch(t, nil, port, scatterSource)
			g := w.joinGo(ctx, t, port)[w.goRanks[0]]
			in := slices.Repeat([]float32{float32(g.Rank() + 1)}, w.size)
			if out, err := group.ReduceScatterSlice(ctx, g, in, group.Sum); err != nil || out[0] != 6 {
				t.Fatalf("the sum is %v, %v", out, err)
			}
			out, err := group.ReduceScatterSlice(ctx, g, in, group.Max)
			if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), torchcaps.Option) ||
				!strings.Contains(err.Error(), torchcaps.Variable) {
				t.Errorf("a maximum was scattered: %v, %v", out, err)
			}
			for _, p := range procs {
				p.Expect(t, "6.0")
				t.Log(p.Line(t)) // no rank waits for another
			}
		})
	}
}

// partSource is a PyTorch rank of a world of two versions that makes a group of Go ranks and those of the newer version.
const partSource = `
import datetime, json, sys
import torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
limit = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=limit)
part = dist.new_group([0, 2, 3])
said = []
if rank != 1:
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, dist.ReduceOp.AVG, group=part)
    said.append(x.item())
    out, x = torch.zeros(1), torch.full((3,), float(rank))
    dist.reduce_scatter_tensor(out, x, dist.ReduceOp.MAX, group=part)
    said.append(out.item())
    split = part.split_group([2, 0, 1], timeout=limit)
    x = torch.tensor([float(rank)])
    split.broadcast(x, 0).wait()
    said.append(x.item())
x = torch.tensor([float(rank)])
dist.all_reduce(x)
said.append(x.item())
print(json.dumps(said), flush=True)
sys.stdin.readline()
`

// TestMixedPart: in a world with PyTorch ranks of two versions, a group of Go ranks and those of one version does all that this version
// can, if the Go ranks are told so; one with both cannot be split, and goes on.
func TestMixedPart(t *testing.T) {
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	w := world{size: 4, goRanks: []int{0, 3}, torches: map[int]*torchtest.Torch{1: torchtest.V26, 2: torchtest.Newest}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	port := testkit.FreePort(t)
	procs := w.startTorch(t, nil, port, partSource)
	groups := w.joinGo(ctx, t, port)
	newest := group.Peers("torch-" + torchtest.Newest.About(t).Version)
	err := w.eachGo(func(r int) error {
		g := groups[r]
		if _, err := g.Split(ctx, [][]cohort.Rank{{0, 1, 2, 3}}); !errors.Is(err, cohort.NotSupported) {
			t.Errorf("rank %d: a split with a rank of PyTorch 2.6: %v", r, err)
		}
		part, err := g.NewGroup(ctx, []cohort.Rank{0, 2, 3}, group.WithPeers(newest))
		if err != nil {
			return err
		}
		own := float32(r)
		x := []float32{own}
		if err = group.AllReduceSlice(ctx, part, x, group.Avg); err != nil || x[0] != float32(5)/3 {
			return fmt.Errorf("average %v: %w", x, err)
		}
		most, err := group.ReduceScatterSlice(ctx, part, []float32{own, own, own}, group.Max)
		if err != nil || most[0] != 3 {
			return fmt.Errorf("maximum %v: %w", most, err)
		}
		split, err := part.Split(ctx, [][]cohort.Rank{{2, 0, 1}})
		if err != nil {
			return err
		}
		root := tensor.Must(tensor.From([]float32{own}, 1))
		if err = split.Broadcast(ctx, root, 0).Wait(ctx); err != nil || first(root) != 3 {
			return fmt.Errorf("the root has %v: %w", first(root), err)
		}
		x = []float32{own}
		if err = group.AllReduceSlice(ctx, g, x, group.Sum); err != nil || x[0] != 6 {
			return fmt.Errorf("sum %v: %w", x, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if line := procs[1].Line(t); line != "[6.0]" {
		t.Errorf("PyTorch 2.6 has %s", line)
	}
	if line := procs[2].Line(t); line != "[1.6666666269302368, 3.0, 3.0, 6.0]" {
		t.Errorf("the newest PyTorch has %s", line)
	}
}

// hostSource is a launcher that hosts the store of a job.
const hostSource = `
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False, use_libuv=False)
print("ready", flush=True)
sys.stdin.readline()
`

// TestLauncherOfAnotherVersion: a launcher hosts the store, and its PyTorch is not that of the only PyTorch rank. A Go
// rank that this launcher did not start cannot see that, and refuses what the versions compute differently.
func TestLauncherOfAnotherVersion(t *testing.T) {
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	w := world{size: 2, goRanks: []int{1}, torches: map[int]*torchtest.Torch{0: torchtest.V26}, unversioned: true}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	port := testkit.FreePort(t)
	torchtest.Newest.Start(t, torchtest.Script{Source: hostSource, Args: []string{strconv.Itoa(port)}}).Expect(t, "ready")
	w.env = map[string]string{
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
		"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(port),
	}
	// Debian's build lacks libuv, and PyTorch takes it here without asking.
	source := "import sys, torch.distributed\nm = sys.modules['torch.distributed.rendezvous']\nstore = m.TCPStore\nm.TCPStore = " +
		"lambda **k: store(use_libuv=False, **k)\n" + scatterSource
	procs := w.startTorch(t, nil, port, source)
	g := w.joinGo(ctx, t, port)[1]
	if out, err := group.ReduceScatterSlice(ctx, g, []float32{2, 2}, group.Sum); err != nil || out[0] != 3 {
		t.Fatalf("the sum is %v, %v", out, err)
	}
	out, err := group.ReduceScatterSlice(ctx, g, []float32{2, 2}, group.Max)
	if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), torchcaps.Option) ||
		!strings.Contains(err.Error(), torchcaps.Variable) {
		t.Errorf("a maximum was scattered: %v, %v", out, err)
	}
	procs[0].Expect(t, "3.0")
	t.Log(procs[0].Line(t), err)
}
