// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
	"time"
)

// One caller fills all the places that it can get with handlers that do not return: another one is served at once.
func TestGreedyCaller(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	agents := world(t, 3, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.hold", func() { <-release }).MustHandle("t.quick", func() int { return 7 })
	}, WithConcurrency(8))
	ctx := testContext(t)
	for range 100 {
		Async[any](ctx, agents[0], "w1", "t.hold")
	}
	for running := 0; running < 6; {
		_, running, _ = agents[1].server.Counts()
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for range 20 {
		if got, err := Call[int](short, agents[2], "w1", "t.quick"); err != nil || got != 7 {
			t.Fatalf("%v, %v", got, err)
		}
	}
}
