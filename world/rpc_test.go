// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/world"
)

func TestWorldRPC(t *testing.T) {
	const size = 2
	handlers := rpc.NewRegistry().MustHandle("stats.double", func(n int) int { return 2 * n })
	joinAll(t, size, nil, func(ctx context.Context, w *world.World) error {
		for round := range 2 { // a second agent joins the next round, as a second init_rpc does
			agent, err := w.RPC(ctx, fmt.Sprintf("w%d", w.Rank()), rpc.WithHandlers(handlers))
			if err != nil {
				return err
			}
			other := fmt.Sprintf("w%d", (int(w.Rank())+1)%size)
			if got, err := rpc.Call[int](ctx, agent, other, "stats.double", 21); err != nil || got != 42 {
				return fmt.Errorf("round %d: got %d, %w", round, got, err)
			}
			if round == 0 {
				if err := agent.Shutdown(ctx); err != nil {
					return err
				}
			}
		}
		if err := w.Shutdown(ctx); err != nil { // ends the second agent in order
			return err
		}
		if _, err := w.RPC(ctx, "late"); !errors.Is(err, cohort.Closed) {
			return fmt.Errorf("RPC after Shutdown: %w", err)
		}
		return nil
	})
}

// agentsOf gives each of two worlds an agent, named with the prefix.
func agentsOf(ctx context.Context, worlds []*world.World, prefix string) ([]*rpc.Agent, []error) {
	agents, errs := make([]*rpc.Agent, len(worlds)), make([]error, len(worlds))
	var joins sync.WaitGroup
	for i, w := range worlds {
		joins.Go(func() { agents[i], errs[i] = w.RPC(ctx, fmt.Sprint(prefix, i)) })
	}
	joins.Wait()
	return agents, errs
}

func twoWorlds(t *testing.T) []*world.World {
	t.Helper()
	s := store.NewMemory()
	worlds := make([]*world.World, 2)
	for i := range worlds {
		w, err := world.Join(t.Context(), "", world.WithStore(s), world.WithRank(cohort.Rank(i)), world.WithWorldSize(2))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		worlds[i] = w
	}
	return worlds
}

// TestCloseDuringShutdown: Close reaches the agents that a Shutdown waits for.
func TestCloseDuringShutdown(t *testing.T) {
	worlds := twoWorlds(t)
	agents, errs := agentsOf(t.Context(), worlds, "w")
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	shut := make(chan error, 1)
	go func() { shut <- worlds[0].Shutdown(t.Context()) }() // waits for the other worker
	// Until the shutdown has begun: then no agent is made any more.
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := worlds[0].RPC(ctx, "late")
		cancel()
		if errors.Is(err, cohort.Closed) {
			break
		}
	}
	if err := worlds[0].Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-agents[0].Done():
	case <-time.After(10 * time.Second):
		t.Error("an agent outlives its world")
	}
	<-shut
}

// TestAgentThatJoinsDuringShutdown: an agent that is made while another one shuts down does not outlive the world.
func TestAgentThatJoinsDuringShutdown(t *testing.T) {
	worlds := twoWorlds(t)
	first, errs := agentsOf(t.Context(), worlds, "first")
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	shut := make(chan error, 1)
	go func() { shut <- worlds[0].Shutdown(t.Context()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	second, errs := agentsOf(ctx, worlds, "second") // in step or not, as the shutdown lets it
	_ = first[1].Close()
	<-shut
	if second[0] == nil {
		if !errors.Is(errs[0], cohort.Closed) {
			t.Errorf("an agent for a world that is being left: %v", errs[0])
		}
		return
	}
	select {
	case <-second[0].Done():
	case <-time.After(10 * time.Second):
		t.Error("an agent outlives its world")
	}
}

// pausing calls what it is given after each operation that an agent begins with, before the result is returned.
type pausing struct {
	store.Store
	after atomic.Pointer[func()]
}

func (p *pausing) pause() {
	if f := p.after.Load(); f != nil {
		(*f)()
	}
}

func (p *pausing) Set(ctx context.Context, key string, value []byte) error {
	defer p.pause()
	return p.Store.Set(ctx, key, value)
}

func (p *pausing) Get(ctx context.Context, key string) ([]byte, error) {
	defer p.pause()
	return p.Store.Get(ctx, key)
}

func (p *pausing) Add(ctx context.Context, key string, delta int64) (int64, error) {
	defer p.pause()
	return p.Store.Add(ctx, key, delta)
}

func (p *pausing) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	defer p.pause()
	return p.Store.CompareAndSet(ctx, key, expected, desired)
}

func (p *pausing) Check(ctx context.Context, keys ...string) (bool, error) {
	defer p.pause()
	return p.Store.Check(ctx, keys...)
}

// TestAgentThatIsMadeDuringShutdown: an agent does not outlive its world, however far it is when the world is left. After the
// last of its questions to the store the agent may be complete before it is notified, and the world has not recorded it yet.
func TestAgentThatIsMadeDuringShutdown(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for at := int64(1); ; at++ {
		s := &pausing{Store: store.NewMemory()}
		w, err := world.Join(t.Context(), "", world.WithStore(s), world.WithRank(0), world.WithWorldSize(1))
		if err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int64
		shut := make(chan error, 1)
		leave := func() {
			if asked.Add(1) != at {
				return
			}
			go func() { shut <- w.Shutdown(t.Context()) }()
			for closed := error(nil); !errors.Is(closed, cohort.Closed); { // until it has begun
				_, closed = w.Group(over)
			}
		}
		s.after.Store(&leave)
		agent, err := w.RPC(t.Context(), "w")
		s.after.Store(nil)
		if asked.Load() < at { // all are done
			if err != nil || at < 3 {
				t.Errorf("an agent asks %d times: %v", asked.Load(), err)
			}
			_ = w.Close()
			return
		}
		if err != nil && !errors.Is(err, cohort.Closed) {
			t.Errorf("left after question %d: %v", at, err)
		}
		if err := <-shut; err != nil {
			t.Errorf("left after question %d: %v", at, err)
		}
		if agent == nil {
			continue
		}
		select {
		case <-agent.Done():
		default:
			t.Errorf("left after question %d: the agent outlives its world", at)
			_ = agent.Close()
		}
	}
}

// Two processes call each other. With PyTorch among them, whose processes call init_rpc, the Go code is the same.
func ExampleWorld_RPC() {
	dir, err := os.MkdirTemp("", "cohort")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	url := "file://" + filepath.Join(dir, "job") + "?world_size=2"
	handlers := rpc.NewRegistry().MustHandle("ps.scale", func(x, factor float64) float64 { return x * factor }, rpc.Params("x", "factor"))

	ctx := context.Background()
	var workers sync.WaitGroup
	for rank, name := range []string{"trainer", "ps"} {
		workers.Go(func() {
			w, err := world.Join(ctx, fmt.Sprintf("%s&rank=%d", url, rank))
			if err != nil {
				panic(err)
			}
			defer func() { _ = w.Close() }()
			agent, err := w.RPC(ctx, name, rpc.WithHandlers(handlers))
			if err != nil {
				panic(err)
			}
			if name == "trainer" {
				y, err := rpc.Call[float64](ctx, agent, "ps", "ps.scale", 1.5, rpc.Kw{"factor": 4.0})
				fmt.Println(y, err)
			}
			if err := w.Shutdown(ctx); err != nil {
				panic(err)
			}
		})
	}
	workers.Wait()
	// Output: 6 <nil>
}
