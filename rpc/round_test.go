// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// liveOn starts a world of Go workers on a store that had others before.
func liveOn(t *testing.T, st store.Store, n int, static bool) []*Agent {
	t.Helper()
	ctx := testContext(t)
	agents := make([]*Agent, n)
	reg := NewRegistry().MustHandle("math.add", func(a, b int) int { return a + b })
	var wg sync.WaitGroup
	for i := range agents {
		join := func() {
			opts := []Option{WithAddr("127.0.0.1:0"), WithHandlers(reg), WithTimeout(20 * time.Second)}
			if static {
				opts = append(opts, WithRank(cohort.Rank(i)), WithWorldSize(n))
			}
			var err error
			if agents[i], err = Join(ctx, st, fmt.Sprintf("w%d", i), opts...); err != nil {
				t.Errorf("join w%d: %v", i, err)
			}
		}
		if static {
			wg.Go(join)
		} else {
			join()
		}
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, a := range agents {
		t.Cleanup(func() { _ = a.Close() })
		if got, err := Call[int](ctx, a, "w0", "math.add", 1, 2); err != nil || got != 3 {
			t.Fatalf("%s: %v, %v", a.Name(), got, err)
		}
	}
	return agents
}

// TestRounds lets worlds follow each other on one store. No worker is told which one it is.
func TestRounds(t *testing.T) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	for round, w := range []struct {
		n               int
		static, dropped bool
	}{
		{2, true, false},
		{2, true, true},
		{3, true, false}, // of another size
		{2, false, false},
		{2, true, false},
	} {
		agents := liveOn(t, st, w.n, w.static)
		for _, a := range agents {
			if a.world.Round() != round {
				t.Errorf("%s is in round %d, want %d", a.Name(), a.world.Round(), round)
			}
		}
		switch {
		case w.dropped:
			for _, a := range agents {
				_ = a.Close()
			}
		case w.static:
			shutdown(t, agents)
		default:
			for _, a := range agents {
				if err := a.Shutdown(testContext(t)); err != nil {
					t.Errorf("%s leaves: %v", a.Name(), err)
				}
			}
		}
	}
	client, err := NewClient(testContext(t), st, "client", WithAddr("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if client.a.world.Round() != 4 {
		t.Errorf("a client looks at round %d", client.a.world.Round())
	}
}

// TestRoundAfterFailedStart lets a start fail because a rank does not come, and then succeed in the same round.
func TestRoundAfterFailedStart(t *testing.T) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	if a, err := Join(ctx, st, "w0", WithRank(0), WithWorldSize(2), WithAddr("127.0.0.1:0")); err == nil {
		_ = a.Close()
		t.Fatal("a world of one of two")
	}
	shutdown(t, liveOn(t, st, 2, true))
}

// TestDynamicRound returns to a world that still has workers, from whichever round.
func TestDynamicRound(t *testing.T) {
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	shutdown(t, liveOn(t, st, 2, true))
	agents := liveOn(t, st, 3, false)
	if err := agents[1].Shutdown(testContext(t)); err != nil {
		t.Fatal(err)
	}
	a, err := Join(testContext(t), st, "again", WithAddr("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	if a.world.Round() != 1 || len(a.Workers()) != 3 {
		t.Errorf("round %d with %v", a.world.Round(), a.Workers())
	}
}
