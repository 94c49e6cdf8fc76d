// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
)

// A shutdown that not all workers come to ends with its context, says who is missing, and closes the agent. The leader's time is over
// first, and so is the wait of the others.
func TestShutdownTimeout(t *testing.T) {
	w := start(t, worldSize)
	ctx, cancel := context.WithTimeout(w.ctx, 200*time.Millisecond)
	defer cancel()
	within(t, soon, "the shutdown", func() {
		must(t, parallel(worldSize-1, func(i int) error {
			limit := w.ctx
			if i == 0 {
				limit = ctx
			}
			err := w.nodes[i].Shutdown(limit)
			if wrong := checkErr(err, cohort.DeadlineExceeded, "wait for all workers", name(worldSize-1)); wrong != nil {
				return wrong
			}
			_, err = rpc.Call[any](w.ctx, w.nodes[i].Agent, name(0), "t.nothing")
			return checkErr(err, cohort.Closed)
		}))
	})
}

// No worker leaves while another one still has work for it.
func TestShutdownWaitsForWork(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			if n.rank == 0 {
				time.Sleep(50 * time.Millisecond) // the others are in their shutdown
				for rank := range worldSize {
					for range 5 {
						sum, err := rpc.Call[any](w.ctx, n.Agent, name(rank), "t.add", p.make(), p.make())
						if err != nil {
							return err
						}
						if err := p.check(sum, 2); err != nil {
							return err
						}
					}
				}
			}
			if err := w.unevenWork(n, p); err != nil {
				return err
			}
			return n.Shutdown(w.ctx)
		})
	})
}

func TestBarrierTwice(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			if err := w.unevenWork(n, p); err != nil {
				return err
			}
			for range 2 { // the workers without work are there first
				if err := rpc.Barrier(w.ctx, n.Agent); err != nil {
					return err
				}
			}
			sum, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.add", p.make(), p.make())
			if err != nil {
				return err
			}
			return p.check(sum, 2)
		})
		w.shutdown()
	})
}

func TestAllGather(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for round := range 3 {
			got, err := rpc.AllGather(w.ctx, n.Agent, 10*round+n.rank)
			if err != nil {
				return err
			}
			for rank := range worldSize {
				if got[name(rank)] != 10*round+rank {
					return fmt.Errorf("round %d: %v", round, got)
				}
			}
			if len(got) != worldSize {
				return fmt.Errorf("round %d: %v", round, got)
			}
		}
		_, err := rpc.AllGather(w.ctx, n.Agent, 1, "unknown", n.Name())
		return checkErr(err, cohort.NotFound)
	})
}

func TestAllGatherTimeout(t *testing.T) {
	w := start(t, worldSize)
	ctx, cancel := context.WithTimeout(w.ctx, 200*time.Millisecond)
	defer cancel()
	must(t, parallel(worldSize-1, func(i int) error {
		_, err := rpc.AllGather(ctx, w.nodes[i].Agent, i)
		words := []string{}
		if i == 0 {
			words = append(words, name(worldSize-1))
		}
		return checkErr(err, cohort.DeadlineExceeded, words...)
	}))
}

func TestBarrier(t *testing.T) {
	w := start(t, worldSize)
	// check runs barriers and verifies that no worker passes before all have entered.
	check := func(t *testing.T, members [][]int, rounds int) {
		t.Helper()
		arrived := make([]atomic.Int64, len(members)*rounds)
		w.every(func(n *node) error {
			for g, ranks := range members {
				var names []string
				inside := false
				for _, rank := range ranks {
					names = append(names, name(rank))
					inside = inside || rank == n.rank
				}
				if !inside {
					continue
				}
				for round := range rounds {
					count := &arrived[g*rounds+round]
					time.Sleep(time.Duration(n.rank) * 3 * time.Millisecond)
					count.Add(1)
					if err := rpc.Barrier(w.ctx, n.Agent, names...); err != nil {
						return err
					}
					if got := count.Load(); got != int64(len(ranks)) {
						return fmt.Errorf("passed when %d of %d had come", got, len(ranks))
					}
				}
			}
			return nil
		})
	}
	t.Run("all", func(t *testing.T) { check(t, [][]int{{0, 1, 2, 3}}, 3) })
	t.Run("subsets", func(t *testing.T) { check(t, [][]int{{0, 2}, {1, 3}}, 3) })
	t.Run("some", func(t *testing.T) { check(t, [][]int{{1, 2}}, 3) })
	t.Run("alone", func(t *testing.T) { check(t, [][]int{{1, 3}, {0}, {2}}, 3) })
	t.Run("goroutines", func(t *testing.T) {
		w.every(func(n *node) error {
			return parallel(10, func(int) error { return rpc.Barrier(w.ctx, n.Agent) })
		})
	})
}

func TestUnevenWorkload(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		if err := w.unevenWork(n, payload{make: func() any { return ones(100, 100) }}); err != nil {
			return err
		}
		return n.Shutdown(w.ctx)
	})
}

// unevenWork has the first worker give work to the second and then to the third. The others have none of their own.
func (w *world) unevenWork(n *node, p payload) error {
	for to := 1; n.rank == 0 && to <= 2; to++ {
		futures := make([]*cohort.Future[any], 30)
		for i := range futures {
			futures[i] = rpc.Async[any](w.ctx, n.Agent, name(to), "t.heavy", p.make())
		}
		sums, err := cohort.All(futures...).Await(w.ctx)
		if err != nil {
			return err
		}
		for _, sum := range sums {
			if err := p.check(sum, 1024); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestCallAfterShutdown(t *testing.T) {
	w := start(t, 2)
	w.shutdown()
	for _, mode := range modes {
		_, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.nothing")
		wantErr(t, err, cohort.Closed)
	}
	must(t, w.nodes[0].Shutdown(w.ctx)) // again: nothing to do
	must(t, w.nodes[0].Close())
}

// A chain of calls that are not awaited is run to its end before any worker leaves.
func TestNestedFireAndForget(t *testing.T) {
	const depth = 20
	w := start(t, worldSize)
	var ran atomic.Int64
	for _, n := range w.nodes {
		n.reg.MustHandle("t.fire", func(left int) {
			ran.Add(1)
			if left > 1 {
				time.Sleep(time.Millisecond)
				rpc.Async[any](w.ctx, n.self(), w.next(n), "t.fire", left-1)
			}
		})
	}
	w.every(func(n *node) error {
		rpc.Async[any](w.ctx, n.Agent, w.next(n), "t.fire", depth)
		return n.Shutdown(w.ctx)
	})
	if got := ran.Load(); got != depth*worldSize {
		t.Errorf("%d calls ran, want %d", got, depth*worldSize)
	}
}

// The function of a creating call runs to its end before any worker leaves, and so does a call that it makes then.
func TestShutdownWaitsForCreation(t *testing.T) {
	for what, to := range map[string]func(w *world, n *node) string{
		"next": func(w *world, n *node) string { return w.next(n) },
		"self": func(_ *world, n *node) string { return name(n.rank) },
	} {
		t.Run(what, func(t *testing.T) {
			w := start(t, worldSize)
			var ended, called atomic.Int64
			for _, n := range w.nodes {
				n.reg.MustHandle("t.called", func() { called.Add(1) })
				n.reg.MustHandle("t.make", func(ctx context.Context) error {
					select {
					case <-time.After(100 * time.Millisecond): // longer than a shutdown takes that does not wait for it
					case <-ctx.Done():
						return ctx.Err()
					}
					rpc.Async[any](w.ctx, n.self(), w.next(n), "t.called")
					ended.Add(1)
					return nil
				})
			}
			w.every(func(n *node) error {
				if _, err := rpc.Remote[any](w.ctx, n.Agent, to(w, n), "t.make"); err != nil {
					return err
				}
				return n.Shutdown(w.ctx)
			})
			if ended.Load() != worldSize || called.Load() != worldSize {
				t.Errorf("%d functions came to their end and %d calls of theirs ran, want %d", ended.Load(), called.Load(), worldSize)
			}
		})
	}
}

// A worker holds a reference when its owner leaves: reported, with ids, and an error if asked for.
func TestLeakCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []rpc.Option
	}{{"strict", []rpc.Option{rpc.WithLeakCheck()}}, {"logged", nil}} {
		t.Run(c.name, func(t *testing.T) {
			w := start(t, 2, c.opts...)
			owner, user := w.nodes[0], w.nodes[1]
			user.reg.MustHandle("t.keep", func(ref *rpc.Ref[int]) { user.keep(ref) })
			ref, err := rpc.NewRef(owner.Agent, 7)
			must(t, err)
			_, err = rpc.Call[any](w.ctx, owner.Agent, name(1), "t.keep", ref)
			must(t, err)
			testkit.Until(t, "the fork is there", func() bool { return info(owner, "forks") == 1 })
			ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
			defer cancel()
			err = owner.Shutdown(ctx) // alone: the user does not release what it holds
			words := []string{ref.ID(), name(1), "NewRef"}
			if c.name == "strict" {
				wantErr(t, err, cohort.Aborted, append(words, "leaking 1 references")...)
			} else if errors.Is(err, cohort.Aborted) {
				t.Errorf("got %v", err)
			}
			for _, word := range words {
				if !owner.log.Has(word) {
					t.Errorf("the log does not name %s: %s", word, owner.log)
				}
			}
		})
	}
}

func TestCloseAtOnce(t *testing.T) {
	w := start(t, worldSize)
	within(t, soon, "closing", w.close)
}

func TestCloseAfterCalls(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		_, err := rpc.Call[any](w.ctx, n.Agent, w.next(n), "t.add", ones(2), ones(2))
		return err
	})
	within(t, soon, "closing", w.close)
}

// A phase of the shutdown fails: it is named, and the agent is still closed.
func TestShutdownErrors(t *testing.T) {
	w := start(t, 2)
	must(t, w.st.Close()) // the last phase needs the store
	err := w.each(func(n *node) error { return n.Shutdown(w.ctx) })
	if err == nil || !strings.Contains(err.Error(), "wait for calls under way") {
		t.Errorf("got %v", err)
	}
	_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.nothing")
	wantErr(t, err, cohort.Closed)
}

func TestDebugInfo(t *testing.T) {
	w := start(t, 2)
	got := w.nodes[0].DebugInfo()
	for _, key := range []string{
		"num_owner_rrefs", "num_pending_futures", "num_pending_users", "num_forks", // PyTorch's
		"num_pending_children", "num_pending_owners", "num_confirmed_users", // what it lacks
		"agent.thread_pool_size", "agent.num_idle_threads", "agent.client_active_calls", "agent.server_active_calls",
		"agent.server_active_async_calls", "num_current_backward_passes", "num_autograd_contexts",
	} {
		if _, there := got[key]; !there {
			t.Errorf("%s is missing", key)
		}
	}
	for key, value := range got {
		if value < 0 {
			t.Errorf("%s is %d", key, value)
		}
	}
	release := make(chan struct{})
	w.nodes[1].reg.MustHandle("t.block", func() { <-release })
	f := rpc.Async[any](w.ctx, w.nodes[0].Agent, name(1), "t.block")
	testkit.Until(t, "the call is counted", func() bool {
		return w.nodes[0].DebugInfo()["agent.client_active_calls"] == 1 && w.nodes[1].DebugInfo()["agent.server_active_calls"] == 1
	})
	close(release)
	_, err := f.Await(w.ctx)
	must(t, err)
	testkit.Until(t, "and not any more", func() bool {
		return w.nodes[0].DebugInfo()["agent.client_active_calls"] == 0 && w.nodes[1].DebugInfo()["agent.server_active_calls"] == 0
	})
}
