// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/tensor"
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

// TestBorrowing: memory that is used again at once never shows in another call's result, over both transports, and a
// borrowed argument is unusable afterwards.
func TestBorrowing(t *testing.T) {
	for _, transport := range []string{TransportCohort, TransportUV} {
		t.Run(transport, func(t *testing.T) {
			var mu sync.Mutex
			var last *tensor.Tensor
			reg := NewRegistry().MustHandle("borrow.echo", func(x *tensor.Tensor) *tensor.Tensor {
				mu.Lock()
				last = x
				mu.Unlock()
				return x
			}, Borrowed())
			agents := world(t, 2, true, func(int) *Registry { return reg }, WithTransports(transport))
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			var callers sync.WaitGroup
			for g := range 4 {
				callers.Go(func() {
					for i := range 25 {
						x := tensor.Must(tensor.New(tensor.Uint8, 100_000+1000*g))
						if err := x.Fill(int64(g*50 + i)); err != nil {
							t.Error(err)
							return
						}
						y, err := Call[*tensor.Tensor](ctx, agents[0], "w1", "borrow.echo", x)
						if err != nil {
							t.Error(err)
							return
						}
						want, _ := x.Bytes()
						if got, err := y.Bytes(); err != nil || !bytes.Equal(got, want) {
							t.Errorf("caller %d, call %d: another tensor came back (%v)", g, i, err)
							return
						}
						y.Storage().Release()
					}
				})
			}
			callers.Wait()
			limit := time.Now().Add(10 * time.Second)
			mu.Lock()
			kept := last
			mu.Unlock()
			for !kept.Storage().Released() {
				if time.Now().After(limit) {
					t.Fatal("a borrowed argument was not given back")
				}
				time.Sleep(time.Millisecond)
			}
			shutdown(t, agents)
		})
	}
}
