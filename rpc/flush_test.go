// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"math"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/tensor"
)

// A peer that does not read holds up its own control stream, and no other. The lease is longer than the test waits: an owner that
// receives nothing would give up its object by itself.
func TestCongestedPeerHoldsUpOnlyItself(t *testing.T) {
	agents := world(t, 3, true, func(int) *Registry { return NewRegistry().MustHandle("t.make", func() int { return 7 }) },
		WithLease(time.Second, time.Minute, time.Minute))
	ctx := testContext(t)
	refs := map[string]*Ref[int]{}
	for _, to := range []string{"w1", "w2"} {
		ref, err := Remote[int](ctx, agents[0], to, "t.make")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = ref.Fetch(ctx); err != nil {
			t.Fatal(err)
		}
		refs[to] = ref
	}
	p, err := agents[0].net.Peer("w1")
	if err != nil {
		t.Fatal(err)
	}
	flushing, release := agents[0].refs.Stall(p) // as if what is sent to w1 went nowhere
	_ = refs["w1"].Close()
	owned := func(i int) int { return agents[i].DebugInfo()["num_owner_rrefs"] }
	ends(t, "the flush to w1", func() {
		for !flushing() {
			time.Sleep(time.Millisecond)
		}
	})
	_ = refs["w2"].Close()
	ends(t, "the object of w2", func() {
		for owned(2) > 0 {
			time.Sleep(time.Millisecond)
		}
	})
	if owned(1) == 0 {
		t.Error("w1 has received its delete")
	}
	release()
	quiet(t, agents)
	shutdown(t, agents)
}

// TestReferenceAllocations: a reference that is made, fetched and closed costs both workers together no more than this. Once it was 114
// objects of 10,700 bytes, and the garbage collector needed them back a hundred times a second. What the workers do every few milliseconds
// counts, too, so the best of several batches is taken: in most of them little or nothing of that happens, on a slow machine too.
func TestReferenceAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	const mostObjects, mostBytes, batches, size = 95, 9000, 20, 100
	const add = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
	kernel := func(stack []any) (any, error) { return stack[0], nil }
	agents := world(t, 2, true, func(int) *Registry { return NewRegistry() }, WithOperators(map[string]Kernel{"aten::add.Tensor": kernel}))
	defer shutdown(t, agents)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	x := tensor.Must(tensor.From([]float32{1, 1}))
	pairs := func(n int) {
		for range n {
			ref, err := Remote[*tensor.Tensor](ctx, agents[0], "w1", add, x, x, 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = ref.Fetch(ctx); err != nil {
				t.Fatal(err)
			}
			_ = ref.Close()
		}
	}
	pairs(2 * size)
	objects, bytes := uint64(math.MaxUint64), uint64(math.MaxUint64)
	for range batches {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		pairs(size)
		runtime.ReadMemStats(&after)
		objects, bytes = min(objects, (after.Mallocs-before.Mallocs)/size), min(bytes, (after.TotalAlloc-before.TotalAlloc)/size)
	}
	t.Logf("%d objects of %d bytes for each pair", objects, bytes)
	if objects > mostObjects || bytes > mostBytes {
		t.Errorf("%d objects of %d bytes for each pair, at most %d of %d were expected", objects, bytes, mostObjects, mostBytes)
	}
}

// TestLingeringAnswer: the answer to a creation comes also when nothing else is sent.
func TestLingeringAnswer(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry { return NewRegistry().MustHandle("t.make", func() int { return 7 }) })
	defer shutdown(t, agents)
	ctx := testContext(t)
	ref, err := Remote[int](ctx, agents[0], "w1", "t.make")
	if err != nil {
		t.Fatal(err)
	}
	if err = agents[0].caller.Active.Idle(ctx); err != nil || !ref.ConfirmedByOwner() {
		t.Errorf("confirmed %v: %v", ref.ConfirmedByOwner(), err)
	}
	_ = ref.Close()
}

// TestAnswerIsFlushed: the answer to a creation arrives at once at a caller that waits for it. Goroutines that read
// sockets keep the clock of the bubble from advancing, so nothing comes because some time has passed. It runs in a
// process of its own: pools of the packages below keep channels of the bubble, which no other goroutine may use.
func TestAnswerIsFlushed(t *testing.T) {
	const child = "COHORT_TEST_HASTENED_ANSWER"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(testContext(t), os.Args[0], "-test.run=^TestAnswerIsFlushed$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = limit.Done() // its channel is not of the bubble, nor is its clock
	synctest.Test(t, func(t *testing.T) {
		made := make(chan struct{}, 1)
		agents := world(t, 2, true, func(int) *Registry {
			return NewRegistry().MustHandle("t.make", func() int { made <- struct{}{}; return 7 })
		})
		ctx := testContext(t)
		for range 3 {
			ref, err := Remote[int](ctx, agents[0], "w1", "t.make")
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-made: // the answer is in the queue of the owner
			case <-limit.Done():
				t.Fatal("the function was not called")
			}
			if err := ref.Confirmed(limit); err != nil {
				t.Fatal(err)
			}
			_ = ref.Close()
		}
	})
}
