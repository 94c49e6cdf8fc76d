// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
)

// TestAfterASeriesOfReferences does all kinds of things right after references that were made, fetched and closed one after
// the other, when the reader of the link is often offered to callers: none of them may wait for a caller that does not come.
func TestAfterASeriesOfReferences(t *testing.T) {
	const cancelled = 1000
	ran, gaveUp := make(chan int, 100), make(chan error, 100)
	reg := NewRegistry().
		MustHandle("series.echo", func(n int) int { return n }).
		MustHandle("series.tell", func(n int) int {
			ran <- n
			return n
		}).
		MustHandle("series.fail", func() (int, error) { return 0, Raise("ValueError", "no") }).
		MustHandle("series.wait", func(ctx context.Context) error {
			ran <- -1
			<-ctx.Done()
			gaveUp <- context.Cause(ctx)
			return ctx.Err()
		})
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx := testContext(t)
	a, b := agents[0], agents[1]
	series := func() {
		t.Helper()
		for n := range 60 {
			ref, err := Remote[int](ctx, a, "w1", "series.echo", n)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := ref.Fetch(ctx); err != nil || v != n {
				t.Fatalf("reference %d: %d, %v", n, v, err)
			}
			_ = ref.Close()
		}
	}
	heard := func(which ...int) {
		t.Helper()
		for {
			select {
			case got := <-ran:
				if got == cancelled {
					continue // it may run, and late
				}
				if !slices.Contains(which, got) {
					t.Fatalf("function %d ran, want %v", got, which)
				}
				return
			case <-ctx.Done():
				t.Fatal("the creating call did not arrive")
			}
		}
	}
	order := func(ctx context.Context, fn string, args ...any) *Ref[int] {
		t.Helper()
		ref, err := Remote[int](ctx, a, "w1", fn, args...)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	for round := range 10 {
		series()
		ref := order(ctx, "series.tell", round) // and nothing behind it
		heard(round)
		if err := ref.Confirmed(ctx); err != nil {
			t.Fatal(err)
		}
		_ = ref.Close()
		series()
		_ = order(ctx, "series.tell", round).Close()
		heard(round)
		series()
		ref = order(ctx, "series.echo", round)
		if err := ref.Confirmed(ctx); err != nil {
			t.Fatal(err)
		}
		if v, err := ref.Fetch(ctx); err != nil || v != round {
			t.Fatalf("a reference that was confirmed: %d, %v", v, err)
		}
		series()
		twin := order(ctx, "series.tell", 100)
		refs := []*Ref[int]{ref, twin, order(ctx, "series.tell", 101)}
		heard(100, 101)
		heard(100, 101)
		for _, ref := range refs {
			if _, err := ref.Fetch(ctx); err != nil {
				t.Fatal(err)
			}
			_ = ref.Close()
		}
		series()
		ref = order(ctx, "series.fail")
		var raised *RemoteError
		if _, err := ref.Fetch(ctx); !errors.As(err, &raised) || raised.Kind != "ValueError" {
			t.Fatalf("a function that fails: %v", err)
		}
		_ = ref.Close()
		series()
		ref = order(ctx, "series.none")
		if _, err := ref.Fetch(ctx); err == nil {
			t.Fatal("a function that does not exist has a value")
		}
		_ = ref.Close()
		series()
		ref = order(ctx, "series.wait")
		heard(-1)
		_ = ref.Close() // it is not used any more, but it is confirmed and runs on
		series()
		short, cancel := context.WithCancel(ctx)
		ref = order(short, "series.tell", cancelled)
		cancel() // before it was confirmed, or behind it
		if err := ref.Confirmed(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("a creation that was canceled: %v", err)
		}
		_ = ref.Close()
		series()
		if v, err := Call[int](ctx, b, "w0", "series.echo", round); err != nil || v != round {
			t.Fatalf("a call from the other side: %d, %v", v, err)
		}
		series()
		if v, err := Async[int](ctx, a, "w1", "series.echo", round).Await(ctx); err != nil || v != round {
			t.Fatalf("a future: %d, %v", v, err)
		}
	}
}

// TestCutInASeriesOfReferences cuts the link again and again while references are made, fetched and closed: creations that
// were lost with it are repeated.
func TestCutInASeriesOfReferences(t *testing.T) {
	reg := NewRegistry().MustHandle("series.echo", func(n int) int { return n })
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx := testContext(t)
	a, b := agents[0], agents[1]
	there, err := a.net.Peer("w1")
	if err != nil {
		t.Fatal(err)
	}
	here, err := b.net.Peer("w0")
	if err != nil {
		t.Fatal(err)
	}
	for round := range 10 {
		side := []*rpcsession.Peer{here, there}[round%2]
		for n := range 40 {
			ref, err := Remote[int](ctx, a, "w1", "series.echo", n)
			if err != nil {
				t.Fatal(err)
			}
			if n == 39 {
				if c := side.Current(); c != nil {
					_ = c.Link.Close()
				}
			}
			if v, err := ref.Fetch(ctx); err != nil || v != n {
				t.Fatalf("round %d, reference %d: %d, %v", round, n, v, err)
			}
			_ = ref.Close()
		}
	}
	empty(t, b)
}

// TestDeletesRideAlong bounds what an owner keeps for a user who closes what it has fetched: the deletes go with later
// creating calls.
func TestDeletesRideAlong(t *testing.T) {
	reg := NewRegistry().MustHandle("series.echo", func(n int) int { return n })
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx := testContext(t)
	a, b := agents[0], agents[1]
	most := 0
	for n := range 2000 {
		ref, err := Remote[int](ctx, a, "w1", "series.echo", n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ref.Fetch(ctx); err != nil {
			t.Fatal(err)
		}
		_ = ref.Close()
		most = max(most, len(b.refs.State().Values))
	}
	if most > rpcref.ControlRide {
		t.Errorf("the owner had %d objects, of which the user held one", most)
	}
	empty(t, b)
}

// empty waits until a worker owns nothing.
func empty(t *testing.T, a *Agent) {
	t.Helper()
	ctx := testContext(t)
	for len(a.References().Objects) > 0 {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("left are %+v", a.References().Objects)
		}
	}
}
