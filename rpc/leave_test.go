// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// TestLeaveAfterOneThatHeld lets a worker leave that had got a reference in an answer, and then the one that gave it. The
// second must not wait until all that the first may have passed on is settled: it has nothing to do with it any more.
func TestLeaveAfterOneThatHeld(t *testing.T) {
	ctx := testContext(t)
	st := store.NewMemory()
	t.Cleanup(func() { _ = st.Close() })
	reg := NewRegistry().MustHandle("v.own", func(ctx context.Context) (*Ref[int], error) { return NewRef(AgentFrom(ctx), 7) })
	join := func(name string) *Agent {
		a, err := Join(ctx, st, name, WithAddr("127.0.0.1:0"), WithHandlers(reg), WithLease(time.Second, time.Minute, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	a, b := join("a"), join("b")
	ref, err := Call[*Ref[int]](ctx, b, "a", "v.own")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ref.Fetch(ctx); err != nil || n != 7 {
		t.Fatalf("fetch: %v, %v", n, err)
	}
	_ = ref.Close()
	if err := b.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	bounded, cancel := context.WithTimeout(ctx, 20*time.Second) // the grace is a minute
	defer cancel()
	if err := a.Shutdown(bounded); err != nil {
		t.Fatal(err)
	}
	if bounded.Err() != nil {
		t.Error("the shutdown took as long as it was allowed to")
	}
}
