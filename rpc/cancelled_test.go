// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// Creations that are cancelled at any moment leave no object at their owners.
func TestCancelledCreationsLeaveNothing(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("t.make", func(ctx context.Context, us int) (int, error) {
			select {
			case <-time.After(time.Duration(us) * time.Microsecond):
				return us, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		for seed := range uint64(6) {
			rng := rand.New(rand.NewPCG(seed, 1))
			for range 60 {
				ctx, cancel := context.WithCancel(testContext(t))
				time.AfterFunc(time.Duration(rng.IntN(400))*time.Microsecond, cancel)
				ref, err := Remote[int](ctx, agents[0], "w1", "t.make", rng.IntN(400))
				if err != nil {
					cancel()
					continue
				}
				if rng.IntN(2) == 0 {
					_, _ = ref.Fetch(ctx)
				}
				_ = ref.Close()
				cancel()
			}
		}
		settled := func() bool {
			user, owner := agents[0].DebugInfo(), agents[1].DebugInfo()
			return user["num_failed_users"] == 0 && user["num_pending_users"] == 0 && owner["num_owner_rrefs"] == 0 &&
				owner["num_forks"] == 0
		}
		for deadline := time.Now().Add(15 * time.Second); !settled(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("user %v\nowner %v\n%+v", agents[0].DebugInfo(), agents[1].DebugInfo(), agents[1].References())
			}
		}
		shutdown(t, agents)
	})
}

// Who fetches while the creation is cancelled learns that it was, and not that the object is gone.
func TestFetchOfACancelledCreationSaysSo(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("t.hold", func(ctx context.Context) (int, error) {
			select {
			case <-time.After(time.Millisecond): // PyTorch's wire cannot cancel
				return 1, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		rng := rand.New(rand.NewPCG(1, 2))
		for range 100 {
			ctx, cancel := context.WithCancel(testContext(t))
			ref, err := Remote[int](ctx, agents[0], "w1", "t.hold")
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Duration(rng.IntN(100))*time.Microsecond, cancel)
			_, err = ref.Fetch(testContext(t))
			// PyTorch's wire has a text for that, and no code.
			if err != nil && cohort.CodeOf(err) != cohort.Canceled && !strings.Contains(err.Error(), "its creation was cancelled") {
				t.Errorf("fetch: %v", err)
			}
			_ = ref.Close()
			cancel()
		}
		shutdown(t, agents)
	})
}

// A reference that was closed is used while its creation is cancelled. It needs the race detector: both look at why it failed.
func TestUseOfAClosedReferenceWhileItIsCancelled(t *testing.T) {
	reg := NewRegistry().MustHandle("t.wait", func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	agents := world(t, 2, false, func(int) *Registry { return reg })
	for range 50 {
		ctx, cancel := context.WithCancel(testContext(t))
		ref, err := Remote[int](ctx, agents[0], "w1", "t.wait")
		if err != nil {
			t.Fatal(err)
		}
		_ = ref.Close()
		var wg sync.WaitGroup
		wg.Go(cancel)
		for range 20 {
			if _, err := ref.Fetch(testContext(t)); err == nil {
				t.Error("a closed reference was fetched")
			}
		}
		wg.Wait()
	}
	shutdown(t, agents)
}

// slowly creates a reference to an object that is there, 7, once release is closed.
func slowly(ctx context.Context, t *testing.T) (agents []*Agent, ref *Ref[int], release chan struct{}) {
	t.Helper()
	begun := make(chan struct{})
	release = make(chan struct{})
	agents = world(t, 2, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.slow", func() int { close(begun); <-release; return 7 })
	})
	ref, err := Remote[int](ctx, agents[0], "w1", "t.slow")
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	return agents, ref, release
}

// Fetches that are given up leave nothing at the owner, and neither do those of a worker that goes.
func TestGivenUpFetches(t *testing.T) {
	ctx := testContext(t)
	agents, ref, release := slowly(ctx, t)
	waiting := func() int {
		n := 0
		for _, o := range agents[1].refs.State().Values {
			n += o.Waiting()
		}
		return n
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		ends(t, what, func() {
			for !ok() {
				time.Sleep(time.Millisecond)
			}
		})
	}
	short, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	for range 500 {
		work.Go(func() { _, _ = ref.Fetch(short) })
	}
	until("the arrival of the fetches", func() bool { return waiting() == 500 })
	cancel()
	work.Wait()
	until("the end of the fetches", func() bool { return waiting() == 0 })
	work.Go(func() {
		if n, err := ref.Fetch(ctx); err != nil || n != 7 {
			t.Errorf("%v, %v", n, err)
		}
	})
	until("the last fetch", func() bool { return waiting() == 1 })
	close(release)
	work.Wait()
	_ = ref.Close()
	quiet(t, agents)
	shutdown(t, agents)
}

// TestFetchesAreBounded: the fetches of a connection that wait are counted, and one over the limit is refused. The others go on.
func TestFetchesAreBounded(t *testing.T) {
	ctx := testContext(t)
	agents, ref, release := slowly(ctx, t)
	const many = 10
	var work sync.WaitGroup
	for range many {
		work.Go(func() {
			if n, bad := ref.Fetch(ctx); bad != nil || n != 7 {
				t.Errorf("%v, %v", n, bad)
			}
		})
	}
	p, err := agents[1].net.Peer("w0")
	if err != nil {
		t.Fatal(err)
	}
	waiting := &p.Current().Fetches
	ends(t, "the arrival of the fetches", func() {
		for waiting.Load() != many {
			time.Sleep(time.Millisecond)
		}
	})
	const more = 1 << 20 // as if that many had come
	waiting.Add(more)
	if _, err := ref.Fetch(ctx); cohort.CodeOf(err) != cohort.Exhausted {
		t.Errorf("one more: %v", err)
	}
	waiting.Add(-more)
	close(release)
	work.Wait()
	if n := waiting.Load(); n != 0 {
		t.Errorf("%d are still counted", n)
	}
	_ = ref.Close()
	quiet(t, agents)
	shutdown(t, agents)
}
