// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestResultWithoutFormKeepsNothing returns a reference beside a value that no wire carries. The caller gets an error, and
// the fork that was made for it goes.
func TestResultWithoutFormKeepsNothing(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		var given atomic.Pointer[Ref[int]]
		reg := NewRegistry().MustHandle("v.both", func() []any { return []any{given.Load(), make(chan int)} })
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		held, err := NewRef(agents[1], 7)
		if err != nil {
			t.Fatal(err)
		}
		given.Store(held)
		if got, callErr := Call[any](ctx, agents[0], "w1", "v.both"); callErr == nil {
			t.Fatalf("a channel arrived: %v", got)
		}
		made, err := Remote[any](ctx, agents[0], "w1", "v.both")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := made.Fetch(ctx); err == nil {
			t.Fatalf("a channel was fetched: %v", got)
		}
		_, _ = made.Close(), held.Close()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			info := agents[1].DebugInfo()
			if info["num_owner_rrefs"] == 0 && info["num_forks"] == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("owner %v", info)
			}
		}
		shutdown(t, agents)
	})
}
