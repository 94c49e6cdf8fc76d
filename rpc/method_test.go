// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// slowCounter is an object with a method that takes as long as it likes.
type slowCounter struct {
	n      int
	endure chan struct{}
}

func (c *slowCounter) Add(n int) int { c.n += n; return c.n }

func (c *slowCounter) Fail() error { return errors.New("no more") }

func (c *slowCounter) Slow(ctx context.Context) error {
	select {
	case <-c.endure:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestMethodsHaveTheirNames: interceptors, events and errors of both sides name a method of a reference, and not the function
// that PyTorch calls it through.
func TestMethodsHaveTheirNames(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		var mu sync.Mutex
		seen, keys := map[string][]CallInfo{}, map[string]bool{}
		watch := func(side string) Interceptor {
			return func(_ context.Context, call CallInfo) (context.Context, func(error), error) {
				mu.Lock()
				defer mu.Unlock()
				seen[side] = append(seen[side], call)
				return nil, nil, nil
			}
		}
		hook := func(e observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			keys[fmt.Sprintf("%s %s", e.Kind, e.Key)] = true
		}
		reg := NewRegistry().MustClass("objects.Counter", &slowCounter{}).MustHandle("objects.make",
			func() *slowCounter { return &slowCounter{} })
		agents := world(t, 2, true, func(int) *Registry { return reg },
			append(opts, WithCallInterceptors(watch("call")), WithServeInterceptors(watch("serve")), WithHook(hook))...)
		ctx := testContext(t)
		for _, to := range []string{"w0", "w1"} {
			ref, err := Remote[*slowCounter](ctx, agents[0], to, "objects.make")
			if err != nil {
				t.Fatal(err)
			}
			if _, err = CallMethod[int](ctx, ref, "add", 0); err != nil { // the object is there
				t.Fatal(err)
			}
			mu.Lock()
			clear(seen)
			mu.Unlock()
			if n, failed := CallMethod[int](ctx, ref, "add", 2); failed != nil || n != 2 {
				t.Fatalf("%d, %v", n, failed)
			}
			if n, failed := AsyncMethod[int](ctx, ref, "add", 2).Await(ctx); failed != nil || n != 4 {
				t.Fatalf("%d, %v", n, failed)
			}
			sum, err := RemoteMethod[int](ctx, ref, "add", 2)
			if err != nil {
				t.Fatal(err)
			}
			if n, failed := sum.Fetch(ctx); failed != nil || n != 6 {
				t.Fatalf("%d, %v", n, failed)
			}
			_, err = CallMethod[any](ctx, ref, "fail")
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Key != "fail" || e.Peer != to {
				t.Errorf("the error names another function: %v", err)
			}
			mu.Lock()
			for side, peer := range map[string]string{"call": to, "serve": "w0"} {
				want := []CallInfo{
					{Peer: peer, Func: "add", Object: ref.ID()},
					{Peer: peer, Func: "add", Object: ref.ID()},
					{Peer: peer, Func: "add", Object: ref.ID(), Remote: true},
					{Peer: peer, Func: "fail", Object: ref.ID()},
				}
				if !slices.Equal(seen[side], want) {
					t.Errorf("%s at %s: %+v, want %+v", side, to, seen[side], want)
				}
			}
			for _, key := range []string{"rpc.call add", "rpc.remote add", "rpc.serve add", "rpc.serve fail"} {
				if !keys[key] {
					t.Errorf("no event %q", key)
				}
			}
			for key := range keys {
				if key == "rpc.call "+localInvoke || key == "rpc.serve "+localInvoke || key == "rpc.remote "+localInvoke {
					t.Errorf("event %q", key)
				}
			}
			mu.Unlock()
			_, _ = ref.Close(), sum.Close()
		}
		shutdown(t, agents)
	})
}

// TestMethodTimeouts: the context of a method call is its timeout, as rref.rpc_sync(timeout) and its siblings have one. It ends
// the call and not the object.
func TestMethodTimeouts(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		endure := make(chan struct{})
		reg := NewRegistry().MustClass("objects.Counter", &slowCounter{}).
			MustHandle("objects.make", func() *slowCounter { return &slowCounter{endure: endure} })
		agents := world(t, 2, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		for _, to := range []string{"w0", "w1"} {
			ref, err := Remote[*slowCounter](ctx, agents[0], to, "objects.make")
			if err != nil {
				t.Fatal(err)
			}
			if err = ref.Confirmed(ctx); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			if _, err = CallMethod[any](short, ref, "slow"); !errors.Is(err, cohort.DeadlineExceeded) {
				t.Errorf("call at %s: %v", to, err)
			}
			cancel()
			short, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			if _, err = AsyncMethod[any](short, ref, "slow").Await(ctx); !errors.Is(err, cohort.DeadlineExceeded) {
				t.Errorf("async at %s: %v", to, err)
			}
			cancel()
			if n, failed := CallMethod[int](ctx, ref, "add", 1); failed != nil || n != 1 {
				t.Errorf("the object afterwards: %d, %v", n, failed)
			}
			agents[0].SetTimeout(20 * time.Millisecond) // of calls without a deadline
			if _, err = CallMethod[any](context.WithoutCancel(ctx), ref, "slow"); !errors.Is(err, cohort.DeadlineExceeded) {
				t.Errorf("the worker's timeout at %s: %v", to, err)
			}
			agents[0].SetTimeout(DefaultTimeout)
			_ = ref.Close()
		}
		close(endure)
		shutdown(t, agents)
	})
}
