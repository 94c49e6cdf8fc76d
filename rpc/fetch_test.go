// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// slowly creates a reference to an object that is there, 7, once release is closed.
func slowly(ctx context.Context, t *testing.T) (agents []*Agent, ref *Ref[int], release chan struct{}) {
	t.Helper()
	begun := make(chan struct{})
	release = make(chan struct{})
	agents = world(t, 2, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.slow", func() int { close(begun); <-release; return 7 })
	})
	ref, err := Remote[int](ctx, agents[0], "w1", "t.slow")
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	return agents, ref, release
}

// Fetches that are given up leave nothing at the owner, and neither do those of a worker that goes.
func TestGivenUpFetches(t *testing.T) {
	ctx := testContext(t)
	agents, ref, release := slowly(ctx, t)
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

// TestFetchesAreBounded: the fetches of a connection that wait are counted, and one over the limit is refused. The others go on.
func TestFetchesAreBounded(t *testing.T) {
	ctx := testContext(t)
	agents, ref, release := slowly(ctx, t)
	const many = 10
	var work sync.WaitGroup
	for range many {
		work.Go(func() {
			if n, bad := ref.Fetch(ctx); bad != nil || n != 7 {
				t.Errorf("%v, %v", n, bad)
			}
		})
	}
	p, err := agents[1].net.Peer("w0")
	if err != nil {
		t.Fatal(err)
	}
	waiting := &p.Current().Fetches
	ends(t, "the arrival of the fetches", func() {
		for waiting.Load() != many {
			time.Sleep(time.Millisecond)
		}
	})
	const more = 1 << 20 // as if that many had come
	waiting.Add(more)
	if _, err := ref.Fetch(ctx); cohort.CodeOf(err) != cohort.Exhausted {
		t.Errorf("one more: %v", err)
	}
	waiting.Add(-more)
	close(release)
	work.Wait()
	if n := waiting.Load(); n != 0 {
		t.Errorf("%d are still counted", n)
	}
	_ = ref.Close()
	quiet(t, agents)
	shutdown(t, agents)
}
