// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"flag"
	"runtime"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

var memoryRounds = flag.Int("rpc.rounds", 20_000, "calls and references of the memory test, after a tenth of them as warm-up")

// heapInUse returns the live heap when everything that can be collected was.
func heapInUse() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemory makes many calls and references and drops them: nothing may stay behind. With -rpc.rounds 1000000 it is the
// test of the release.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	agents := world(t, 2, true, func(int) *Registry { return refRegistry() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	round := func(n int) {
		window := make(chan *dist.Future[int], 64)
		for i := range n {
			if len(window) == cap(window) {
				if _, err := (<-window).Await(ctx); err != nil {
					t.Fatal(err)
				}
			}
			window <- Async[int](context.Background(), agents[0], "w1", "objects.int", i)
			ref, err := Remote[int](context.Background(), agents[0], "w1", "objects.int", i)
			if err != nil {
				t.Fatal(err)
			}
			if i%1000 == 0 {
				if _, err := ref.Fetch(ctx); err != nil {
					t.Fatal(err)
				}
			}
			_ = ref.Close()
		}
		for len(window) > 0 {
			if _, err := (<-window).Await(ctx); err != nil {
				t.Fatal(err)
			}
		}
		quiet(t, agents)
	}
	n := min(*memoryRounds, 10_000)
	if raceEnabled {
		n = 1000
	}
	round(n)
	before := heapInUse()
	started := time.Now()
	more := *memoryRounds
	if raceEnabled {
		more = 5000
	}
	round(more)
	after := heapInUse()
	t.Logf("%d calls and references in %v: %d KiB before, %d KiB after", more, time.Since(started).Round(time.Millisecond), before>>10, after>>10)
	if after > before+10<<20 {
		t.Errorf("the heap grew by %d KiB", (after-before)>>10)
	}
	shutdown(t, agents)
}
