// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"runtime"
	"strings"
	"testing"
)

// free waits until no place is taken.
func free(t *testing.T, a *Agent) {
	t.Helper()
	ends(t, "the last handler", func() {
		for running := 1; running > 0; {
			_, running, _ = a.server.Counts()
		}
	})
}

// A handler that ends its goroutine, as t.FailNow does, is answered for, gives its place back and takes no reader along.
func TestGoexitInHandler(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 2, true, func(int) *Registry {
			return NewRegistry().
				MustHandle("t.exit", func() { runtime.Goexit() }).
				MustHandle("t.make", func() int { runtime.Goexit(); return 1 }).
				MustHandle("t.fine", func() int { return 7 })
		}, append([]Option{WithConcurrency(2)}, opts...)...)
		ctx := testContext(t)
		for _, to := range []string{"w1", "w0"} {
			for range 5 { // more often than there are places
				if _, err := Call[any](ctx, agents[0], to, "t.exit"); err == nil || !strings.Contains(err.Error(), "Goexit") {
					t.Fatalf("to %s: %v", to, err)
				}
				ref, err := Remote[int](ctx, agents[0], to, "t.make")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := ref.Fetch(ctx); err == nil || !strings.Contains(err.Error(), "Goexit") {
					t.Fatalf("object at %s: %v", to, err)
				}
				_ = ref.Close()
			}
			if got, err := Call[int](ctx, agents[0], to, "t.fine"); err != nil || got != 7 {
				t.Errorf("to %s: %v, %v", to, got, err)
			}
		}
		free(t, agents[1])
		shutdown(t, agents)
	})
}
