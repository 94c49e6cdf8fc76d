// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// speedSource is a PyTorch rank that runs blocks of all_reduce. Rank 0 gets the commands and prints the mean time of one.
const speedSource = `
import sys, os, time, datetime, torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))
order = torch.zeros(2, dtype=torch.int64)
if rank == 0:
    print("ready", flush=True)
while True:
    if rank == 0:
        line = sys.stdin.readline().split()
        order = torch.tensor([int(line[0]), int(line[1])]) if line else torch.zeros(2, dtype=torch.int64)
    dist.broadcast(order, 0)
    n, count = order.tolist()
    if count == 0:
        break
    x = torch.ones(n)
    dist.all_reduce(x)
    begin = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(x)
    took = time.perf_counter() - begin
    if rank == 0:
        print("%f" % (1e6 * took / count), flush=True)
os._exit(0)
`

// speedWorld is a world that waits for orders.
type speedWorld struct {
	tb   testing.TB
	lead *torchtest.Proc
	rest []*torchtest.Proc
	done sync.WaitGroup
}

// startSpeedWorld starts three ranks; with mixed the last one is a Go rank.
func startSpeedWorld(tb testing.TB, tr *torchtest.Torch, mixed bool) *speedWorld {
	tb.Helper()
	const size = 3
	w := &speedWorld{tb: tb}
	port := strconv.Itoa(testkit.FreePort(tb))
	addr := net.JoinHostPort("127.0.0.1", port)
	torch := size
	if mixed {
		torch--
	}
	for r := range torch {
		p := tr.Start(tb, torchtest.Script{
			Name: "speed.py", Source: speedSource,
			Args: []string{strconv.Itoa(r), strconv.Itoa(size), port},
		})
		if r == 0 {
			w.lead = p
		} else {
			w.rest = append(w.rest, p)
		}
	}
	if mixed {
		w.done.Go(func() {
			if err := speedRank(addr, size-1, size); err != nil {
				tb.Error(err)
			}
		})
	}
	w.lead.Expect(tb, "ready")
	return w
}

// speedRank is the Go rank.
func speedRank(addr string, rank, size int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	client, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if _, err = client.JoinWorker(ctx); err != nil {
		return err
	}
	g, err := group.New(ctx, client, cohort.Rank(rank), size)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	for {
		order := make([]int64, 2)
		if err := group.BroadcastSlice(ctx, g, order, 0); err != nil {
			return err
		}
		if order[1] == 0 {
			return nil
		}
		x := tensor.Must(tensor.Full(tensor.Float32, 1, int(order[0])))
		var w *group.Work
		for range 1 + order[1] {
			w = g.AllReduce(ctx, x, group.Sum, group.Reuse(w))
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
	}
}

// block runs one block and returns the mean time of one all_reduce, in microseconds.
func (w *speedWorld) block(n, count int) float64 {
	w.tb.Helper()
	w.lead.Send(w.tb, fmt.Sprint(n, count))
	us, err := strconv.ParseFloat(w.lead.Line(w.tb), 64)
	if err != nil {
		w.tb.Fatal(err)
	}
	return us
}

func (w *speedWorld) stop() {
	w.tb.Helper()
	w.lead.Send(w.tb, "0 0")
	w.done.Wait()
	for _, p := range append(w.rest, w.lead) {
		p.MustExit(w.tb, time.Minute)
	}
}

// BenchmarkMixedWorld compares all_reduce in a world of three PyTorch ranks with one of two PyTorch ranks and a Go rank, as a
// PyTorch rank sees it. Both worlds stand side by side and run blocks in turn, so that what else the machine does hits
// both; the metrics are the medians of the blocks. gloo loses whole scheduler ticks where threads outnumber cores, so that
// blocks of small operations differ by a factor among themselves: take many.
//
//	COHORT_INTEROP=auto go test ./interop/gloo -run '^$' -bench MixedWorld
func BenchmarkMixedWorld(b *testing.B) {
	for _, tr := range []*torchtest.Torch{torchtest.V113, torchtest.V26} {
		b.Run("torch-"+tr.Name, func(b *testing.B) {
			tr.Need(b)
			for _, c := range []struct {
				name     string
				n, count int
			}{{"1KiB", 256, 200}, {"1MiB", 256 << 10, 30}, {"16MiB", 4 << 20, 5}} {
				b.Run(c.name, func(b *testing.B) {
					torch, mixed := startSpeedWorld(b, tr, false), startSpeedWorld(b, tr, true)
					var with, without, ratios []float64
					for i := range max(b.N, 15) {
						first, second := torch, mixed
						if i%2 == 1 {
							first, second = mixed, torch
						}
						x, y := first.block(c.n, c.count), second.block(c.n, c.count)
						if i%2 == 1 {
							x, y = y, x
						}
						without, with, ratios = append(without, x), append(with, y), append(ratios, y/x)
					}
					torch.stop()
					mixed.stop()
					b.ReportMetric(median(without), "torch-us")
					b.ReportMetric(median(with), "mixed-us")
					b.ReportMetric(median(with)/median(without), "ratio")
					b.Logf(
						"| %s | %s | 3 PyTorch %.0f us | 2 PyTorch + 1 Go %.0f us | ratio of medians %.2f | median of ratios %.2f, "+
							"%.2f to %.2f |",
						tr.Name, c.name, median(without), median(with), median(with)/median(without), median(ratios),
						ratios[len(ratios)/4], ratios[len(ratios)*3/4])
				})
			}
		})
	}
}

// median sorts the list.
func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
