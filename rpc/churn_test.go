// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"math"
	"runtime"
	"testing"

	"github.com/cohort-dist/cohort/tensor"
)

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

// TestLingeringAnswer: the answer to a creation comes also when nothing else is sent, and at once to whoever waits for it.
func TestLingeringAnswer(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry { return NewRegistry().MustHandle("t.make", func() int { return 7 }) })
	defer shutdown(t, agents)
	ctx := testContext(t)
	for _, waits := range []bool{false, true} {
		ref, err := Remote[int](ctx, agents[0], "w1", "t.make")
		if err != nil {
			t.Fatal(err)
		}
		if waits {
			err = ref.Confirmed(ctx)
		} else {
			err = agents[0].caller.Active.Idle(ctx)
		}
		if err != nil || !ref.ConfirmedByOwner() {
			t.Errorf("confirmed %v: %v", ref.ConfirmedByOwner(), err)
		}
		_ = ref.Close()
	}
}
