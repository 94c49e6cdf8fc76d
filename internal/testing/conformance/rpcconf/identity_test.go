// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

func TestWorkerInfo(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		if self := n.Self(); self.Name != name(n.rank) || int(self.ID) != n.rank {
			return fmt.Errorf("self is %v", self)
		}
		peer, err := n.Worker(w.next(n))
		if err != nil || peer.Name != w.next(n) || int(peer.ID) != (n.rank+1)%worldSize {
			return fmt.Errorf("peer is %v, %w", peer, err)
		}
		_, err = n.Worker("WorkerUnknown")
		return checkErr(err, cohort.NotFound, "WorkerUnknown", name(0))
	})
}

func TestWorkers(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		var want []rpc.WorkerInfo
		for rank := range worldSize {
			want = append(want, rpc.WorkerInfo{Name: name(rank), ID: cohort.Rank(rank)})
		}
		if got := n.Workers(); !slices.Equal(got, want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

// The transports have names; an unknown one is refused, and both work.
func TestTransportNames(t *testing.T) {
	_, err := rpc.Join(t.Context(), store.NewMemory(), "w", rpc.WithTransports("tensorpipe2"))
	wantErr(t, err, cohort.InvalidArgument, "tensorpipe2", "cohort", "uv")
	for _, transport := range []string{rpc.TransportCohort, rpc.TransportUV} {
		w := start(t, 2, rpc.WithTransports(transport, rpc.TransportUV))
		w.serveRefs()
		p := payload{make: func() any { return ones(2) }}
		ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.add", p.make(), p.make())
		must(t, err)
		sum, err := rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.add_ref", ref, p.make())
		must(t, err)
		must(t, p.check(sum, 3))
		must(t, ref.Close())
		w.shutdown()
	}
	reg := rpc.NewRegistry().MustHandle("t.f", func() {})
	wantErr(t, reg.Handle("t.f", func() {}), cohort.AlreadyExists, "t.f")
}

func TestDuplicateName(t *testing.T) {
	for _, c := range []struct {
		name  string
		names []string
	}{{"all", []string{"same", "same", "same", "same"}}, {"two", []string{"worker0", "worker1", "same", "same"}}} {
		t.Run(c.name, func(t *testing.T) {
			st, ctx := store.NewMemory(), bounded(t)
			agents := make([]*rpc.Agent, len(c.names))
			err := parallel(len(c.names), func(i int) (err error) {
				agents[i], err = rpc.Join(ctx, st, c.names[i], rpc.WithRank(cohort.Rank(i)), rpc.WithWorldSize(len(c.names)),
					rpc.WithAddr("127.0.0.1:0"))
				if wrong := checkErr(err, cohort.AlreadyExists, "same"); wrong != nil { // every worker hears of it
					return fmt.Errorf("worker %d: %w", i, wrong)
				}
				return nil
			})
			for _, a := range agents {
				if a != nil {
					_ = a.Close()
				}
			}
			must(t, err)
		})
	}
}

// A second agent of the same worker in a world that runs is refused.
func TestJoinWhileRunning(t *testing.T) {
	w := dynamic(t, 2)
	_, err := rpc.Join(w.ctx, w.st, name(0), rpc.WithRank(0), rpc.WithAddr("127.0.0.1:0"))
	wantErr(t, err, cohort.AlreadyExists, name(0))
	_, err = rpc.Join(w.ctx, w.st, "other", rpc.WithRank(0), rpc.WithAddr("127.0.0.1:0"))
	wantErr(t, err, cohort.AlreadyExists, name(0))
	if here, failed := rpc.Call[string](w.ctx, w.nodes[1].Agent, name(0), "t.here"); failed != nil || here != name(0) {
		t.Errorf("the first agent: %q, %v", here, failed)
	}
	// In a static world a second agent begins the next round, as a second init_rpc of a PyTorch process does after a
	// shutdown. It waits for the others there and does not disturb those that run.
	s := start(t, 2)
	short, cancel := context.WithTimeout(s.ctx, 200*time.Millisecond)
	defer cancel()
	_, err = rpc.Join(short, s.st, name(0), rpc.WithRank(0), rpc.WithWorldSize(2), rpc.WithAddr("127.0.0.1:0"))
	wantErr(t, err, cohort.DeadlineExceeded)
	s.every(func(n *node) error {
		if here, err := rpc.Call[string](s.ctx, n.Agent, s.next(n), "t.here"); err != nil || here != s.next(n) {
			return fmt.Errorf("%q was reached: %w", here, err)
		}
		return nil
	})
	s.shutdown()
}

// Init, shutdown and init again in the same processes; references work in the second world too, which PyTorch's do not.
func TestJoinTwice(t *testing.T) {
	st := store.NewMemory()
	ctx := bounded(t)
	for round := range 3 {
		w := &world{T: t, ctx: ctx, st: st}
		for rank := range 3 {
			w.nodes = append(w.nodes, newNode(rank))
		}
		must(t, parallel(3, func(i int) error {
			return w.nodes[i].join(ctx, st, rpc.WithRank(cohort.Rank(i)), rpc.WithWorldSize(3), rpc.WithRound(round))
		}))
		w.serveRefs()
		w.every(func(n *node) error {
			ref, err := rpc.Remote[any](ctx, n.Agent, w.next(n), "t.add", ones(2), ones(2))
			if err != nil {
				return err
			}
			sum, err := rpc.Call[any](ctx, n.Agent, name((n.rank+2)%3), "t.add_ref", ref, ones(2))
			if err != nil {
				return err
			}
			_ = ref.Close()
			return payload{make: func() any { return ones(2) }}.check(sum, 3)
		})
		w.shutdown()
		w.close()
	}
}

// Without a running agent there are no references and no calls.
func TestRefWithoutAgent(t *testing.T) {
	w := start(t, 1)
	a := w.nodes[0].Agent
	must(t, a.Close())
	_, err := rpc.NewRef(a, 1)
	wantErr(t, err, cohort.Closed)
	_, err = rpc.Remote[any](w.ctx, a, name(0), "t.echo", 1)
	wantErr(t, err, cohort.Closed)
	_, err = rpc.Call[any](w.ctx, a, name(0), "t.echo", 1)
	wantErr(t, err, cohort.Closed)
}

func TestWorldSizeOne(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, 1)
		for _, mode := range modes {
			sum, err := mode.call(w.ctx, w.nodes[0].Agent, name(0), "t.add", p.make(), p.make())
			must(t, err)
			must(t, p.check(sum, 2))
		}
		w.shutdown()
	})
}

func TestInvalidNames(t *testing.T) {
	for _, bad := range []string{"abc*", " ", "", strings.Repeat("a", 128), "a/b", "ü"} {
		_, err := rpc.Join(t.Context(), store.NewMemory(), bad, rpc.WithRank(0), rpc.WithWorldSize(1))
		wantErr(t, err, cohort.InvalidArgument, "worker name")
	}
	for _, good := range []string{"a", strings.Repeat("a", 127), "A-z_0:9"} {
		a, err := rpc.Join(bounded(t), store.NewMemory(), good, rpc.WithRank(0), rpc.WithWorldSize(1), rpc.WithAddr("127.0.0.1:0"))
		must(t, err)
		must(t, a.Close())
	}
}

func TestWorkerInfoTravels(t *testing.T) {
	w := start(t, 2)
	self := w.nodes[0].Self()
	back, err := rpc.Call[rpc.WorkerInfo](w.ctx, w.nodes[0].Agent, name(1), "t.echo", self)
	if err != nil || back != self {
		t.Errorf("got %v, %v", back, err)
	}
}

func TestOwnerEquality(t *testing.T) {
	w := start(t, 3)
	a := w.nodes[0].Agent
	seen := map[rpc.WorkerInfo]int{}
	for _, to := range []string{name(1), name(1), name(2)} {
		ref, err := rpc.Remote[any](w.ctx, a, to, "t.echo", 1)
		must(t, err)
		if ref.Owner() == a.Self() {
			t.Errorf("owner %v", ref.Owner())
		}
		seen[ref.Owner()]++
		must(t, ref.Close())
	}
	for _, value := range []int{40, 50} { // its own
		ref, err := rpc.NewRef(a, value)
		must(t, err)
		seen[ref.Owner()]++
		must(t, ref.Close())
	}
	if len(seen) != 3 || seen[rpc.WorkerInfo{Name: name(1), ID: 1}] != 2 || seen[rpc.WorkerInfo{Name: name(2), ID: 2}] != 1 ||
		seen[a.Self()] != 2 {
		t.Errorf("got %v", seen)
	}
}

func TestConcurrencyInDebugInfo(t *testing.T) {
	w := start(t, 1, rpc.WithConcurrency(27))
	if got := w.nodes[0].DebugInfo()["agent.thread_pool_size"]; got != 27 {
		t.Errorf("got %v", got)
	}
}

func TestDefaultTimeout(t *testing.T) {
	w := start(t, 1, rpc.WithTimeout(321*time.Second))
	if got := w.nodes[0].Timeout(); got != 321*time.Second {
		t.Errorf("got %v", got)
	}
	w.nodes[0].SetTimeout(123 * time.Second)
	if got := w.nodes[0].Timeout(); got != 123*time.Second {
		t.Errorf("got %v", got)
	}
}

func TestDynamicJoin(t *testing.T) {
	w := dynamic(t, worldSize)
	w.every(func(n *node) error {
		if got := len(n.Workers()); got != worldSize {
			return fmt.Errorf("%d workers are known", got)
		}
		return nil
	})
	// They leave one after the other; those that stay can still call each other.
	for i := range w.nodes[:worldSize-1] {
		must(t, w.nodes[i].Shutdown(w.ctx))
		last := w.nodes[worldSize-1]
		if got := len(last.Workers()); got != worldSize-1-i {
			t.Errorf("after worker %d left, %d workers are known", i, got)
		}
	}
	must(t, w.nodes[worldSize-1].Shutdown(w.ctx))
}

func TestDynamicNewcomerCalls(t *testing.T) {
	w := dynamic(t, 1)
	for range 3 {
		n := w.add()
		for rank := range n.rank {
			if here, err := rpc.Call[string](w.ctx, n.Agent, name(rank), "t.here"); err != nil || here != name(rank) {
				t.Errorf("worker %d calls %d: %q, %v", n.rank, rank, here, err)
			}
		}
	}
}

func TestDynamicMembersCallNewcomer(t *testing.T) {
	w := dynamic(t, 1)
	for range 3 {
		n := w.add()
		for rank := range n.rank {
			if here, err := rpc.Call[string](w.ctx, w.nodes[rank].Agent, n.Name(), "t.here"); err != nil || here != n.Name() {
				t.Errorf("worker %d calls %d: %q, %v", rank, n.rank, here, err)
			}
		}
	}
}

// In a static world the rank is required. In a dynamic one PyTorch requires it too; here the next free one is taken.
func TestMissingRank(t *testing.T) {
	_, err := rpc.Join(t.Context(), store.NewMemory(), "w", rpc.WithWorldSize(2))
	wantErr(t, err, cohort.InvalidArgument, "WithRank")
	_, err = rpc.Join(t.Context(), store.NewMemory(), "w", rpc.WithRank(-1))
	wantErr(t, err, cohort.InvalidArgument, "rank -1")
	_, err = rpc.Join(t.Context(), store.NewMemory(), "w", rpc.WithRank(2), rpc.WithWorldSize(2))
	wantErr(t, err, cohort.InvalidArgument)
	st := store.NewMemory()
	for want := range 3 {
		a, err := rpc.Join(bounded(t), st, name(want), rpc.WithAddr("127.0.0.1:0"))
		must(t, err)
		t.Cleanup(func() { _ = a.Close() })
		if int(a.ID()) != want {
			t.Errorf("worker %d has id %d", want, a.ID())
		}
	}
}

func TestDynamicAndStaticTogether(t *testing.T) {
	w := dynamic(t, 1)
	_, err := rpc.Join(w.ctx, w.st, "static", rpc.WithRank(1), rpc.WithWorldSize(2), rpc.WithAddr("127.0.0.1:0"))
	wantErr(t, err, cohort.Mismatch, "world size")
	s := start(t, 2)
	_, err = rpc.Join(s.ctx, s.st, "dynamic", rpc.WithAddr("127.0.0.1:0"))
	wantErr(t, err, cohort.Mismatch, "world size")
}
