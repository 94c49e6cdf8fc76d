// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// TestAfterASeriesOfCalls does all kinds of things right after calls that came alone, when the next caller reads its own
// answer: none of them may wait for that.
func TestAfterASeriesOfCalls(t *testing.T) {
	began, gaveUp := make(chan struct{}, 100), make(chan error, 100)
	reg := NewRegistry().
		MustHandle("series.echo", func(n int) int { return n }).
		MustHandle("series.wait", func(ctx context.Context) error {
			began <- struct{}{}
			<-ctx.Done()
			gaveUp <- context.Cause(ctx)
			return ctx.Err()
		}).
		MustHandle("series.late", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}).
		MustHandle("series.back", func(ctx context.Context, n int) (int, error) {
			a := AgentFrom(ctx)
			v, err := Call[int](ctx, a, "w0", "series.echo", n)
			return v + 1, err
		})
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx := testContext(t)
	a, b := agents[0], agents[1]
	series := func() {
		t.Helper()
		for n := range 40 {
			if v, err := Call[int](ctx, a, "w1", "series.echo", n); err != nil || v != n {
				t.Fatalf("call %d: %d, %v", n, v, err)
			}
		}
	}
	heard := func() {
		t.Helper()
		select {
		case <-gaveUp:
		case <-ctx.Done():
			t.Fatal("the callee was not told")
		}
	}
	for round := range 10 {
		series()
		short, cancel := context.WithCancel(ctx)
		go func() { // a call that ends before it was sent would not be noticed
			select {
			case <-began:
			case <-ctx.Done():
			}
			cancel()
		}()
		if _, err := Call[any](short, a, "w1", "series.wait"); !errors.Is(err, context.Canceled) {
			t.Fatalf("a canceled call: %v", err)
		}
		heard()
		series()
		short, cancel = context.WithTimeout(ctx, 200*time.Microsecond)
		if _, err := Call[any](short, a, "w1", "series.late"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a call that is late: %v", err)
		}
		cancel()
		series()
		if v, err := Call[int](ctx, a, "w1", "series.back", round); err != nil || v != round+1 {
			t.Fatalf("a call that calls back: %d, %v", v, err)
		}
		series()
		if v, err := Call[int](ctx, b, "w0", "series.echo", round); err != nil || v != round {
			t.Fatalf("a call from the other side: %d, %v", v, err)
		}
		series()
		if v, err := Async[int](ctx, a, "w1", "series.echo", round).Await(ctx); err != nil || v != round {
			t.Fatalf("a future: %d, %v", v, err)
		}
		series()
		ref, err := Remote[int](ctx, a, "w1", "series.echo", round)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := ref.Fetch(ctx); err != nil || v != round {
			t.Fatalf("a reference: %d, %v", v, err)
		}
		if err := ref.Close(); err != nil {
			t.Fatal(err)
		}
	}
	series()
	done := make(chan error, 1)
	go func() {
		_, err := Call[any](ctx, a, "w1", "series.wait")
		done <- err
	}()
	select {
	case <-began:
	case <-ctx.Done():
		t.Fatal("the last call did not begin")
	}
	_ = b.Close()
	select {
	case err := <-done:
		if err == nil || errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatalf("a call to a worker that ends: %v", err)
		}
	case <-ctx.Done():
		t.Fatal("a call to a worker that has ended waits for ever")
	}
}
