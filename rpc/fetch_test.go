// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Fetches that are given up leave nothing at the owner, and neither do those of a worker that goes.
func TestGivenUpFetches(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	agents := world(t, 2, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.slow", func() int { close(begun); <-release; return 7 })
	})
	ctx := testContext(t)
	ref, err := Remote[int](ctx, agents[0], "w1", "t.slow")
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	waiting := func() int {
		n := 0
		for _, o := range agents[1].refs.State().Values {
			n += o.Waiting()
		}
		return n
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		ends(t, what, func() {
			for !ok() {
				time.Sleep(time.Millisecond)
			}
		})
	}
	short, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	for range 500 {
		work.Go(func() { _, _ = ref.Fetch(short) })
	}
	until("the arrival of the fetches", func() bool { return waiting() == 500 })
	cancel()
	work.Wait()
	until("the end of the fetches", func() bool { return waiting() == 0 })
	work.Go(func() {
		if n, err := ref.Fetch(ctx); err != nil || n != 7 {
			t.Errorf("%v, %v", n, err)
		}
	})
	until("the last fetch", func() bool { return waiting() == 1 })
	close(release)
	work.Wait()
	_ = ref.Close()
	quiet(t, agents)
	shutdown(t, agents)
}
