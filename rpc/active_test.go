// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync/atomic"
	"testing"
)

// A call without a waiting caller counts from the moment it was started, also while its session is still being opened. So a
// shutdown that begins then does not end before it has run.
func TestCallCountsBeforeItsSession(t *testing.T) {
	for what, start := range map[string]func(a *Agent) error{
		"async": func(a *Agent) error {
			Async[any](testContext(t), a, "w2", "t.ran")
			return nil
		},
		"remote": func(a *Agent) error {
			_, err := Remote[any](testContext(t), a, "w2", "t.ran")
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			var ran atomic.Int64
			release := make(chan struct{})
			agents := world(t, 3, true, func(int) *Registry {
				return NewRegistry().MustHandle("t.ran", func() {
					<-release
					ran.Add(1)
				})
			})
			p, err := agents[1].net.Peer("w2")
			if err != nil {
				t.Fatal(err)
			}
			if p.Current() != nil {
				t.Fatal("w1 has a session with w2 already")
			}
			err = start(agents[1])
			n := agents[1].caller.Active.Count() + agents[2].caller.Active.Count() // a creation is counted there before it is answered
			close(release)
			if err != nil || n == 0 {
				t.Fatalf("started with error %v, and %d calls are active", err, n)
			}
			shutdown(t, agents)
			if ran.Load() != 1 {
				t.Errorf("it ran %d times", ran.Load())
			}
		})
	}
}

// The same of a call to oneself, which runs in another goroutine.
func TestCallToSelfCountsAtOnce(t *testing.T) {
	for range 100 {
		release := make(chan struct{})
		agents := world(t, 1, true, func(int) *Registry { return NewRegistry().MustHandle("t.hold", func() { <-release }) })
		Async[any](testContext(t), agents[0], "w0", "t.hold")
		n := agents[0].caller.Active.Count()
		close(release)
		if n == 0 {
			t.Fatal("it is not active")
		}
		shutdown(t, agents)
	}
}

// Whatever becomes of a call that was started, it is not active for ever.
func TestCallThatFailsEndsItsCount(t *testing.T) {
	ctx := testContext(t)
	agents := world(t, 3, true, func(int) *Registry { return NewRegistry() })
	a := agents[1]
	if _, err := Async[any](ctx, a, "unknown", "t.none").Await(ctx); err == nil {
		t.Error("a call to an unknown worker succeeds")
	}
	if _, err := Async[any](ctx, a, "w1", "t.none").Await(ctx); err == nil {
		t.Error("a call of nothing at oneself succeeds")
	}
	_ = agents[2].Close()
	if _, err := Async[any](ctx, a, "w2", "t.none").Await(ctx); err == nil {
		t.Error("a call to one that is gone succeeds")
	}
	if ref, err := Remote[any](ctx, a, "w2", "t.none"); err == nil {
		if _, err = ref.Fetch(ctx); err == nil {
			t.Error("what was made by one that is gone has a value")
		}
	}
	if err := a.caller.Active.Idle(ctx); err != nil {
		t.Errorf("%d calls are active: %v", a.caller.Active.Count(), err)
	}
	_ = a.Close()
	for _, to := range []string{"w0", "w1", "w2"} {
		if _, err := Async[any](ctx, a, to, "t.none").Await(ctx); err == nil {
			t.Errorf("a closed agent calls %s", to)
		}
	}
	if err := a.caller.Active.Idle(ctx); err != nil {
		t.Errorf("%d calls of a closed agent are active: %v", a.caller.Active.Count(), err)
	}
}
