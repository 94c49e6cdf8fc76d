// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

var memoryRounds = flag.Int("rpc.rounds", 20_000, "calls and references of the memory test, after a tenth of them as warm-up")

// memory is what the process needs, in bytes.
type memory struct {
	heap     uint64 // what is reachable
	resident uint64 // what the system counts; 0 where it does not count
}

// memoryInUse measures when everything that can be given back was.
func memoryInUse() memory {
	for range 3 {
		debug.FreeOSMemory()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{heap: m.HeapAlloc, resident: resident()}
}

// resident reads the process's resident memory where the system has /proc.
func resident() uint64 {
	text, _ := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		pages, _ := strconv.ParseUint(fields[1], 10, 64)
		return pages * uint64(os.Getpagesize())
	}
	return 0
}

// TestMemory makes many calls and references and drops them: nothing may stay behind. "make memory" lets it make half a
// million of each, and a quarter of that over uv.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	t.Run("cohort", func(t *testing.T) { testMemory(t, *memoryRounds) })
	// Slower by far. A quarter of half a million rounds still shows 84 bytes that stay per round, which is less than a
	// call and its buffer take.
	t.Run("uv", func(t *testing.T) { testMemory(t, *memoryRounds/4, WithTransports(TransportUV)) })
}

func testMemory(t *testing.T, rounds int, opts ...Option) {
	t.Helper()
	agents := world(t, 2, true, func(int) *Registry { return refRegistry() }, opts...)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	round := func(n int) {
		window := make(chan *cohort.Future[int], 64)
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
	n := min(rounds, 10_000)
	if raceEnabled {
		n = 1000
	}
	round(n)
	before := memoryInUse()
	started := time.Now()
	more := rounds
	if raceEnabled {
		more = 5000
	}
	round(more)
	after := memoryInUse()
	t.Logf(
		"count: memory: %d calls and as many references, after %d of each: resident %d KiB before, %d KiB after; heap %d KiB "+
			"before, %d KiB after; %v",
		more, n, before.resident>>10, after.resident>>10, before.heap>>10, after.heap>>10, time.Since(started).Round(time.Millisecond))
	const most = 10 << 20
	if after.heap > before.heap+most {
		t.Errorf("the heap grew by %d KiB", (after.heap-before.heap)>>10)
	}
	if !raceEnabled && after.resident > before.resident+most { // the race detector keeps books of its own
		t.Errorf("the resident memory grew by %d KiB", (after.resident-before.resident)>>10)
	}
	shutdown(t, agents)
}

// TestAlloc: received tensors, of calls and of results, are in memory that the program provides.
func TestAlloc(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		const origin, elements = "pool of the test", 1 << 20
		var asked atomic.Int64
		alloc := func(n int) (*tensor.Storage, error) {
			asked.Add(1)
			return tensor.WrapStorage(make([]byte, n), origin, nil), nil
		}
		there := make(chan string, 1)
		reg := NewRegistry().MustHandle("test.echo", func(x *tensor.Tensor) *tensor.Tensor {
			there <- x.Storage().Origin()
			return x
		})
		agents := world(t, 2, true, func(int) *Registry { return reg }, append(opts, WithAlloc(alloc))...)
		defer shutdown(t, agents)
		x := tensor.Must(tensor.New(tensor.Float32, elements))
		got, err := Call[*tensor.Tensor](testContext(t), agents[0], "w1", "test.echo", x)
		if err != nil {
			t.Fatal(err)
		}
		if at := <-there; at != origin || got.Storage().Origin() != origin || asked.Load() < 2 {
			t.Errorf("there %q, here %q, asked %d times", at, got.Storage().Origin(), asked.Load())
		}
	})
}
