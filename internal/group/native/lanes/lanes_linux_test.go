// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/tensor"
)

var _ native.Checker = (*mesh)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listeners opens a listener for each rank.
func listeners(tb testing.TB, size int) (list []net.Listener, peers []string) {
	tb.Helper()
	for range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		list, peers = append(list, l), append(peers, l.Addr().String())
	}
	return list, peers
}

// world connects a world over loopback in which each rank asks for so many lanes.
func world(tb testing.TB, size, lanes int, change func(*nativetcp.Config)) []transport.Mesh {
	tb.Helper()
	list, peers := listeners(tb, size)
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	meshes, errs := make([]transport.Mesh, size), make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() {
			cfg := nativetcp.Config{Rank: r, Size: size, Group: [16]byte{7}, Listener: list[r], Peers: peers, Shared: true, Lanes: lanes}
			if change != nil {
				change(&cfg)
			}
			meshes[r], errs[r] = Connect(ctx, cfg)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeWorld(meshes) })
	return meshes
}

func closeWorld(meshes []transport.Mesh) {
	var wg sync.WaitGroup
	for _, m := range meshes {
		wg.Go(func() { _ = m.Close() })
	}
	wg.Wait()
}

// of returns the lanes of a mesh.
func of(m transport.Mesh) []*nativetcp.Mesh {
	wide := m.(*mesh) //nolint:errcheck,forcetypeassert // a test
	all := []*nativetcp.Mesh{wide.first}
	for _, v := range wide.others {
		all = append(all, v.lane)
	}
	return all
}

func TestWish(t *testing.T) {
	for _, c := range []struct{ cores, here, size, want int }{
		{2, 2, 2, 1},
		{2, 3, 3, 1},
		{2, 1, 2, 2},
		{1, 1, 2, 1},
		{16, 1, 2, 4},
		{16, 8, 64, 2},
		{16, 16, 64, 1},
		{16, 4, 65, 4},
		{16, 0, 2, 1},
		{16, 4, 66, 3},
		{64, 1, 257, 1},
		{64, 1, 5000, 1},
		{64, 1, 1, 4},
	} {
		if got := lanesFor(c.cores, c.here, c.size); got != c.want {
			t.Errorf("%d cores, %d of %d ranks on the host: %d lanes, want %d", c.cores, c.here, c.size, got, c.want)
		}
	}
}

// TestWishesForCoresThatThereAre: GOMAXPROCS can be larger than the number of cores.
func TestWishesForCoresThatThereAre(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(64 * runtime.NumCPU()))
	if got := RequestedLanes(runtime.NumCPU(), 2); got != 1 {
		t.Errorf("a rank for each core asks for %d lanes, want 1", got)
	}
}

// TestFewestRequested: all ranks have as many lanes as the one that asks for the fewest, and with one lane nothing is around the mesh.
func TestFewestRequested(t *testing.T) {
	for _, wishes := range [][]int{{1, 1, 1}, {3, 1, 4}, {0, 4, 4}, {4, 2, 3}, {3, 3, 3}, {8, 8, 8}} {
		meshes := world(t, 3, 1, func(c *nativetcp.Config) { c.Lanes = wishes[c.Rank] })
		want := max(min(wishes[0], wishes[1], wishes[2]), 1)
		for r, m := range meshes {
			if wide, ok := m.(*mesh); ok != (want > 1) || ok && wide.Lanes() != want {
				t.Errorf("wishes %v: rank %d has a %T, want %d lanes", wishes, r, m, want)
			}
		}
		results(t, meshes, leastSplit/8)
		closeWorld(meshes)
	}
}

var kinds = []collective.Kind{
	collective.AllReduce, collective.Broadcast, collective.Reduce, collective.AllGather, collective.AllGatherV, collective.Gather,
	collective.Scatter, collective.ReduceScatter, collective.AllToAll, collective.Barrier,
}

// request is one rank's part of a collective of so many bytes, filled by a seed.
func request(kind collective.Kind, tag uint32, rank, n, size int, uneven bool) collective.Request {
	q := collective.Request{Kind: kind, Tag: tag, Root: int(tag) % n, DType: tensor.Uint8, Op: reduce.Sum}
	rng := rand.NewChaCha8([32]byte{byte(rank), byte(tag), byte(kind)})
	fill := func(n int) []byte {
		b := make([]byte, n)
		_, _ = rng.Read(b)
		return b
	}
	counts, total := make([]int, n), 0
	for r := range counts {
		if counts[r] = size; uneven {
			counts[r] = size * (r + 1) / n
		}
		total += counts[r]
	}
	root := rank == q.Root
	switch kind {
	case collective.AllReduce, collective.Broadcast, collective.Reduce:
		q.Out = fill(size)
	case collective.AllGather:
		q.In, q.Out = fill(size), make([]byte, n*size)
	case collective.AllGatherV:
		q.In, q.Out, q.OutCounts = fill(counts[rank]), make([]byte, total), counts
	case collective.Gather:
		q.In, q.Uneven = fill(counts[rank]), uneven
		if root {
			q.Out = make([]byte, total)
			if uneven {
				q.OutCounts = counts
			}
		}
	case collective.Scatter:
		q.Out, q.Uneven = make([]byte, counts[rank]), uneven
		if root {
			q.In = fill(total)
			if uneven {
				q.InCounts = counts
			}
		}
	case collective.ReduceScatter:
		q.In, q.Out = fill(total), make([]byte, counts[rank])
		if uneven {
			q.InCounts = counts
		}
	case collective.AllToAll:
		q.In, q.Out = fill(n*size), make([]byte, n*size)
	case collective.Barrier:
	}
	return q
}

// results runs all collectives on all ranks, left and resumed at random moments, and returns what each rank got.
func results(t *testing.T, meshes []transport.Mesh, size int) [][]byte {
	t.Helper()
	n := len(meshes)
	got, errs := make([][]byte, n), make([]error, n)
	var wg sync.WaitGroup
	for r, m := range meshes {
		wg.Go(func() {
			e := native.NewEngine(m, native.Tuning{})
			tag := uint32(0)
			for _, kind := range kinds {
				for _, uneven := range []bool{false, true} {
					q := request(kind, tag, r, n, size, uneven)
					if err := testkit.Interrupt[*collective.Interrupted](func(ctx context.Context) error { return e.Run(ctx, &q) },
						uint64(tag)+uint64(r), time.Millisecond); err != nil {
						errs[r] = fmt.Errorf("rank %d: %v of %d bytes: %w", r, kind, size, err)
						return
					}
					got[r] = append(got[r], q.Out...)
					tag++
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestSameResults: every collective gives the same over several lanes as over one, at sizes around that of a message that is cut.
func TestSameResults(t *testing.T) {
	for _, c := range []struct {
		ranks, lanes int
		sizes        []int
	}{
		{2, 2, []int{leastSplit - 1, leastSplit, 2*leastSplit - 1, 2 * leastSplit}},
		{2, 3, []int{leastSplit + 1, 5*leastSplit + 7}},
		{2, 4, []int{leastSplit, 2*leastSplit + 1}},
		{3, 3, []int{leastSplit - 1, leastSplit + 1, 3*leastSplit + 7}},
		{5, 2, []int{leastSplit + 3, 5*leastSplit + 64}},
	} {
		for _, size := range c.sizes {
			t.Run(fmt.Sprintf("ranks=%d/lanes=%d/bytes=%d", c.ranks, c.lanes, size), func(t *testing.T) {
				want := results(t, world(t, c.ranks, 1, nil), size)
				for _, shared := range []bool{true, false} {
					if !shared && c.ranks > 2 {
						continue // ranks that share a process and do not know it spin while others have to wait
					}
					meshes := world(t, c.ranks, c.lanes, func(c *nativetcp.Config) { c.Shared = shared })
					for r, got := range results(t, meshes, size) {
						if !bytes.Equal(got, want[r]) {
							t.Errorf("rank %d has other results than over one lane, shared %v", r, shared)
						}
					}
					idle(t, meshes)
					closeWorld(meshes)
				}
			})
		}
	}
}

// idle checks that nothing of a collective is left when it is over.
func idle(t *testing.T, meshes []transport.Mesh) {
	t.Helper()
	for r, m := range meshes {
		wide := m.(*mesh) //nolint:errcheck,forcetypeassert // a test
		wide.mu.Lock()
		announced := len(wide.mu.announced)
		wide.mu.Unlock()
		if live := wide.live.Load(); live != 0 || announced != 0 {
			t.Errorf("rank %d: %d calls live, %d announced, though all are over", r, live, announced)
		}
		if awaited := wide.Awaited(); len(awaited) > 0 {
			t.Errorf("rank %d waits for %v, though all is over", r, awaited)
		}
	}
}

// TestSmallOnesStayOnTheFirst: collectives of small messages, point-to-point messages and messages whose sizes not all
// ranks know do not touch the other lanes.
func TestSmallOnesStayOnTheFirst(t *testing.T) {
	meshes := world(t, 2, 3, nil)
	results(t, meshes, leastSplit/4)
	var wg sync.WaitGroup
	for r, m := range meshes {
		wg.Go(func() {
			in, out := &transport.Op{Peer: 1 - r, Slot: 5, Buf: make([]byte, 1<<20)},
				&transport.Op{Peer: 1 - r, Slot: 5, Buf: make([]byte, 1<<20)}
			m.Recv(in)
			m.Send(out)
			for _, op := range []*transport.Op{in, out} {
				if err := m.Wait(t.Context(), op); err != nil || op.Divided() {
					t.Errorf("divided %v, %v", op.Divided(), err)
				}
			}
			q := request(collective.AllToAll, 99, r, 2, 1<<20, false)
			if err := native.NewEngine(m, native.Tuning{}).Run(t.Context(), &q); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for r, m := range meshes {
		for i, v := range m.(*mesh).others { //nolint:errcheck,forcetypeassert // a test
			v.mu.Lock()
			if cap(v.mu.queue) > 0 || v.mu.awake {
				t.Errorf("rank %d, lane %d: small messages came here", r, i+1)
			}
			v.mu.Unlock()
		}
	}
}

// TestLargeOnesAreMovedInParts: every lane moves its part of a large message.
func TestLargeOnesAreMovedInParts(t *testing.T) {
	meshes := world(t, 2, 4, nil)
	results(t, meshes, 1<<20)
	for r, m := range meshes {
		for i, v := range m.(*mesh).others { //nolint:errcheck,forcetypeassert // a test
			v.mu.Lock()
			if cap(v.mu.queue) == 0 && cap(v.taken) == 0 {
				t.Errorf("rank %d, lane %d has moved nothing", r, i+1)
			}
			v.mu.Unlock()
		}
	}
}

// TestPartsAreNotCopied: on every lane a part comes straight from the kernel to its place in the message, but for a few
// bytes behind headers.
func TestPartsAreNotCopied(t *testing.T) {
	const size, rounds = 4 << 20, 5
	meshes := world(t, 2, 3, nil)
	var wg sync.WaitGroup
	for r, m := range meshes {
		wg.Go(func() {
			e := native.NewEngine(m, native.Tuning{})
			for tag := range uint32(rounds) {
				q := request(collective.AllReduce, tag, r, 2, size, false)
				if err := e.Run(t.Context(), &q); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for r, m := range meshes {
		for i, lane := range of(m) {
			if copied := lane.Copied(); copied > rounds*size/3/100 {
				t.Errorf("rank %d, lane %d: %d bytes were copied again", r, i, copied)
			}
		}
	}
}

// TestNoAllocations: a collective of large messages allocates nothing once it has run.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, lanes := range []int{1, 3} {
		meshes := world(t, 2, lanes, nil)
		engines := []*native.Engine{native.NewEngine(meshes[0], native.Tuning{}), native.NewEngine(meshes[1], native.Tuning{})}
		requests := []collective.Request{
			request(collective.AllReduce, 0, 0, 2, 2<<20, false),
			request(collective.AllReduce, 0, 1, 2, 2<<20, false),
		}
		tags := make(chan uint32)
		errs := make(chan error)
		var wg sync.WaitGroup
		wg.Go(func() {
			for tag := range tags {
				requests[1].Tag = tag
				errs <- engines[1].Run(context.Background(), &requests[1])
			}
		})
		tag := uint32(0)
		once := func() {
			tag++
			tags <- tag
			requests[0].Tag = tag
			if err := errors.Join(engines[0].Run(context.Background(), &requests[0]), <-errs); err != nil {
				t.Error(err)
			}
		}
		for range 50 {
			once()
		}
		// errors.Join of the test, and what timers of the keeper take now and then
		if allocs := testing.AllocsPerRun(100, once); allocs > 1 {
			t.Errorf("%d lanes: %v allocations for each operation", lanes, allocs)
		}
		close(tags)
		wg.Wait()
	}
}
