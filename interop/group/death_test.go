// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// deathSource is a PyTorch rank that reduces until something breaks, and then ends when it is told to; the late one
// stops after the first time.
const deathSource = `
import sys, time, datetime, torch, torch.distributed as dist
rank, size, port, late = map(int, sys.argv[1:5])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=100))
x = torch.ones(5)
dist.all_reduce(x)
print("ready", flush=True)
if rank == late:
    time.sleep(100)
try:
    while True:
        dist.all_reduce(x)
        x.fill_(1)
except RuntimeError as e:
    print("error", str(e).replace("\n", " ")[:200], flush=True)
    sys.stdin.readline()
`

// inTime is how long Go ranks may take to notice a death, on a machine with far too much to do: not as long as any timeout.
const inTime = 20 * time.Second

// TestAnyDeathIsNamedByAllGoRanks kills each rank of five in turn, while all are busy and while another one is late. All Go
// ranks name the dead one, though gloo's wire has no goodbye, most ranks are no neighbours of it, and PyTorch's ranks end
// because of it too.
//
// PyTorch's ranks end when all connections of the dead one have ended, and not before. The kernel closes the connections of a killed
// process one after the other, and other processes run in between: a neighbour that sees the first one end can raise its error,
// end and close its own connections before a Go rank sees anything of the dead one. That Go rank sees the neighbour's connection end, and
// then that of the dead one. It would see the same if the neighbour had been killed and the other one had ended because of that.
// Nothing else is known of either, so which of them died cannot be told.
func TestAnyDeathIsNamedByAllGoRanks(t *testing.T) {
	type death struct{ victim, late int }
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, d := range []death{{1, -1}, {2, -1}, {3, -1}, {4, -1}, {2, 1}, {3, 1}, {4, 1}, {1, 3}} {
			t.Run(fmt.Sprintf("rank %d, late %d", d.victim, d.late), func(t *testing.T) {
				w := world{size: 5, goRanks: []int{0, 2}}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // PyTorch may take a minute to start
				defer cancel()
				port := testkit.FreePort(t)
				procs := w.startTorch(t, tr, port, deathSource, strconv.Itoa(d.late))
				kill := func() {
					procs[d.victim].Kill()
					<-procs[d.victim].Done()
				}
				if d.victim == 2 { // a Go rank in a process of its own
					cmd := startChild(t, 2, 5, port)
					kill = func() {
						_ = cmd.Process.Kill()
						_, _ = cmd.Process.Wait()
					}
					w.goRanks = []int{0}
				}
				groups := w.joinGo(ctx, t, port)
				var first, all sync.WaitGroup
				errs, ends := map[int]error{}, map[int]time.Time{}
				var mu sync.Mutex
				for r, g := range groups {
					first.Add(1)
					all.Go(func() {
						x := make([]float32, 5)
						err := group.AllReduceSlice(ctx, g, x, group.Sum)
						first.Done()
						for err == nil {
							err = group.AllReduceSlice(ctx, g, x, group.Sum)
						}
						mu.Lock()
						errs[r], ends[r] = err, time.Now()
						mu.Unlock()
					})
				}
				first.Wait()
				for _, p := range procs {
					p.Expect(t, "ready")
				}
				time.Sleep(100 * time.Millisecond) // in the middle of something
				kill()
				killed := time.Now()
				for r, p := range procs {
					if r != d.victim {
						p.Send(t, "end")
					}
				}
				all.Wait()
				for r := range groups {
					if took := ends[r].Sub(killed); took > inTime {
						t.Errorf("rank %d noticed after %v", r, took)
					} else {
						t.Logf("rank %d noticed after %v", r, took)
					}
					if e := new(cohort.Error); !errors.As(errs[r], &e) || e.Code != cohort.PeerLost || e.Rank != cohort.Rank(d.victim) {
						t.Errorf("rank %d: %v", r, errs[r])
					}
				}
			})
		}
	})
}
