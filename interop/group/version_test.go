// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/tensor"
)

// averageSource is a PyTorch rank that averages, and says how that ended.
const averageSource = `
import datetime, sys
import torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
dist.all_reduce(torch.zeros(5))
x = torch.full((5,), float(rank))
try:
    dist.all_reduce(x, dist.ReduceOp.AVG)
    print("average", x.tolist(), flush=True)
except RuntimeError as e:
    print("error", flush=True)
sys.stdin.readline()
`

// TestVersionIsFoundOutOrAskedFor averages, which PyTorch can from 2.8 on. A Go rank that is given the version does what PyTorch
// does. One that is not finds out from the store of a PyTorch rank what it can; where that is not enough it says which
// option is missing, and ends the group instead of letting a rank wait.
func TestVersionIsFoundOutOrAskedFor(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		level, _, _ := torchcaps.Parse(tr.About(t).Version)
		for _, goRank := range []int{0, 1} { // rank 0 hosts the store
			for _, unversioned := range []bool{false, true} {
				t.Run(fmt.Sprintf("go=%d,unversioned=%v", goRank, unversioned), func(t *testing.T) {
					w := world{size: 2, goRanks: []int{goRank}, unversioned: unversioned}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					port := testkit.FreePort(t)
					procs := w.startTorch(t, tr, port, averageSource)
					g := w.joinGo(ctx, t, port)[goRank]
					if err := group.AllReduceSlice(ctx, g, make([]float32, 5), group.Sum); err != nil {
						t.Fatal(err)
					}
					x := []float32{float32(goRank), 0, 0, 0, 0}
					began := time.Now()
					err := group.AllReduceSlice(ctx, g, x, group.Avg)
					if took := time.Since(began); took > 20*time.Second {
						t.Errorf("it took %v", took)
					}
					asked := errors.Is(err, cohort.NotSupported) && strings.Contains(err.Error(), torchcaps.Option) &&
						strings.Contains(err.Error(), torchcaps.Variable)
					since := 10 // that the store of a PyTorch rank tells
					if goRank == 0 {
						since = 8 // that the ranks tell the store of a Go rank
					}
					switch known := !unversioned || level == torchcaps.V1_13 || tr.About(t).Since(2, since); {
					case !known && !asked:
						t.Errorf("the version cannot be known: %v", err)
					case known && level >= torchcaps.V2_8 && (err != nil || x[0] != 0.5):
						t.Errorf("%v %v", x, err)
					case known && level < torchcaps.V2_8 && (!errors.Is(err, cohort.NotSupported) || asked):
						t.Errorf("this PyTorch has no average: %v", err)
					}
					line := procs[1-goRank].Line(t) // no rank waits for another
					t.Logf("PyTorch: %s; Go: %v %v", line, x, err)
				})
			}
		}
	})
}

// TestNamesAfterHashedGroups: how a group that only its members make counts in the names of later ones depends on the version.
func TestNamesAfterHashedGroups(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if tr == torchtest.V113 {
			tr.NotApplicable(t, "has no groups that only their members make")
		}
		plan := []step{
			{Op: "new_group", Name: "a", Ranks: []int{0, 1}, Local: true},
			{Op: "all_reduce", N: 3, DType: "float32", Group: "a", Ranks: []int{0, 1}},
			{Op: "new_group", Name: "b", Ranks: []int{0, 1}},
			{Op: "all_reduce", N: 4, DType: "float32", Group: "b", Ranks: []int{0, 1}},
			{Op: "new_group", Name: "c", Ranks: []int{0, 1}, Local: true},
			{Op: "all_reduce", N: 5, DType: "float32", Group: "c", Ranks: []int{0, 1}},
		}
		want := world{size: 2}.run(t, tr, plan)
		compare(t, plan, want, world{size: 2, goRanks: []int{1}}.run(t, tr, plan))
	})
}

// hashedSource is a PyTorch rank that makes a group by local synchronization and then a plain one.
const hashedSource = `
import datetime, sys
import torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
a = dist.new_group([0, 1], use_local_synchronization=True)
dist.all_reduce(torch.zeros(5), group=a)
b = dist.new_group([0, 1])
dist.all_reduce(torch.zeros(5), group=b)
print("two groups", flush=True)
sys.stdin.readline()
`

// TestUnknownNamesAreAskedFor: a Go rank that cannot know how the PyTorch ranks name a group says so at once, instead of waiting under
// another name. The store of a PyTorch rank up to 2.11 tells enough, that of a newer one does not.
func TestUnknownNamesAreAskedFor(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if tr == torchtest.V113 {
			tr.NotApplicable(t, "has no groups that only their members make")
		}
		w := world{size: 2, goRanks: []int{1}, unversioned: true}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		port := testkit.FreePort(t)
		procs := w.startTorch(t, tr, port, hashedSource)
		g := w.joinGo(ctx, t, port)[1]
		a, err := g.NewGroup(ctx, []cohort.Rank{0, 1}, group.WithLocalSync())
		if err != nil {
			t.Fatal(err) // all versions name the first one alike
		}
		if err = group.AllReduceSlice(ctx, a, make([]float32, 5), group.Sum); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		b, err := g.NewGroup(ctx, []cohort.Rank{0, 1})
		if tr.About(t).Since(2, 12) {
			if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), torchcaps.Option) ||
				time.Since(began) > 20*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err = group.AllReduceSlice(ctx, b, make([]float32, 5), group.Sum); err != nil {
			t.Error(err)
		}
		if line := procs[0].Line(t); line != "two groups" {
			t.Error(line)
		}
	})
}

// TestStoreReportsTheVersion: the store of a PyTorch rank tells a Go rank without any options enough for a mesh of three
// dimensions, whose groups versions make in different orders, and for lists in all_to_all, which 2.12 brought.
func TestStoreReportsTheVersion(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if tr == torchtest.V113 {
			tr.NotApplicable(t, "has no meshes")
		}
		plan := []step{{Op: "mesh", Name: "m", Ranks: []int{2, 1, 2}}}
		for i := range 3 {
			plan = append(plan, step{Op: "all_reduce", N: 3, DType: "float32", Group: "m" + string(rune('a'+i))})
		}
		if tr.About(t).Since(2, 12) {
			plan = append(plan, step{Op: "all_to_all", N: 3, DType: "float32"})
		}
		want := world{size: 4}.run(t, tr, plan)
		compare(t, plan, want, world{size: 4, goRanks: []int{1, 2}, unversioned: true}.run(t, tr, plan))
	})
}

// TestNewerThanKnown: a version that is newer than any that is known is treated as the newest that is, in every group, and the log says so
// once.
func TestNewerThanKnown(t *testing.T) {
	tr := torchtest.Newest
	tr.Need(t)
	plan := []step{
		{Op: "all_reduce", N: 5, DType: "float32", Reduce: "avg"},
		{Op: "new_group", Name: "a", Ranks: []int{0, 1}, Local: true},
		{Op: "reduce_scatter_tensor", N: 4, DType: "float32", Reduce: "max", Group: "a", Ranks: []int{0, 1}},
		{Op: "new_group", Name: "b", Ranks: []int{0, 1}},
		{Op: "all_to_all", N: 3, DType: "float32", Group: "b", Ranks: []int{0, 1}},
	}
	want := world{size: 2}.run(t, tr, plan)
	newer := fmt.Sprint("torch-2.", 1000+rand.IntN(1_000_000_000)) // a process says it of a version once
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	w := world{
		size: 2, goRanks: []int{1}, unversioned: true,
		options: []group.Option{group.WithPeers(group.Peers(newer)), group.WithLogger(logger)},
	}
	compare(t, plan, want, w.run(t, tr, plan))
	if n := strings.Count(log.String(), newer); n != 1 {
		t.Errorf("it was said %d times:\n%s", n, log.String())
	}
}

// halvesSource is a PyTorch rank that sums halves, and ends if its build cannot, or stays.
const halvesSource = `
import datetime, sys
import torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
try:
    dist.all_reduce(torch.ones(5, dtype=torch.float16))
except RuntimeError as e:
    if sys.argv[4] == "stays":
        sys.stdin.readline()
    sys.exit(0)
`

// TestHalvesThatABuildLacks: PyTorch ranks whose build has no half types raise an error of which a Go rank hears
// nothing. What it gets instead, at its timeout or when they end, names the likely cause.
func TestHalvesThatABuildLacks(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, what := range []string{"stays", "ends"} {
			t.Run(what, func(t *testing.T) {
				w := world{
					size: 2, goRanks: []int{1},
					options: []group.Option{group.WithTimeout(2 * time.Second), group.WithConnectTimeout(time.Minute)},
				}
				if what == "ends" {
					w.options[0] = group.WithTimeout(time.Minute)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				port := testkit.FreePort(t)
				w.startTorch(t, tr, port, halvesSource, what)
				g := w.joinGo(ctx, t, port)[1]
				x := tensor.Must(tensor.New(tensor.Float16, 5))
				err := g.AllReduce(ctx, x, group.Sum).Wait(ctx)
				if tr.About(t).Has(torchtest.Halves) {
					if err != nil {
						t.Errorf("this build has half types: %v", err)
					}
					return
				}
				want := map[string]error{"stays": cohort.DeadlineExceeded, "ends": cohort.PeerLost}[what]
				if !errors.Is(err, want) || !strings.Contains(err.Error(), "no half types") {
					t.Errorf("%v", err)
				}
			})
		}
	})
}
