// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// TestCancellationOvertakesTheHandler gives calls up so soon that the handler may not run yet when the callee hears of it:
// none may wait for the deadline, and hold its place until then.
func TestCancellationOvertakesTheHandler(t *testing.T) {
	var running atomic.Int64
	reg := NewRegistry().
		MustHandle("cancel.wait", func(ctx context.Context) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}).
		MustHandle("cancel.echo", func(n int) int { return n })
	agents := world(t, 2, true, func(int) *Registry { return reg }, WithConcurrency(8))
	ctx := testContext(t)
	for i := range 600 {
		short, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Duration(i%60)*time.Microsecond, cancel)
		_, _ = Call[any](short, agents[0], "w1", "cancel.wait")
	}
	if n, err := Call[int](ctx, agents[0], "w1", "cancel.echo", 1); err != nil || n != 1 { // there is a place
		t.Fatalf("%d, %v", n, err)
	}
	for running.Load() != 0 {
		if ctx.Err() != nil {
			t.Fatalf("%d handlers still run", running.Load())
		}
		time.Sleep(time.Millisecond)
	}
}
