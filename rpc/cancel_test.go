// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestCancellationOvertakesTheHandler gives calls up so soon that the handler may not run yet when the callee learns of it:
// none may wait for the deadline, and hold its place until then.
func TestCancellationOvertakesTheHandler(t *testing.T) {
	var running atomic.Int64
	reg := NewRegistry().
		MustHandle("cancel.wait", func(ctx context.Context) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}).
		MustHandle("cancel.echo", func(n int) int { return n })
	agents := world(t, 2, true, func(int) *Registry { return reg }, WithConcurrency(8))
	ctx := testContext(t)
	for i := range 600 {
		short, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Duration(i%60)*time.Microsecond, cancel)
		_, _ = Call[any](short, agents[0], "w1", "cancel.wait")
	}
	if n, err := Call[int](ctx, agents[0], "w1", "cancel.echo", 1); err != nil || n != 1 { // there is a place
		t.Fatalf("%d, %v", n, err)
	}
	for running.Load() != 0 {
		if ctx.Err() != nil {
			t.Fatalf("%d handlers still run", running.Load())
		}
		time.Sleep(time.Millisecond)
	}
}

// A call of a worker to itself that is given up ends the context of its handler.
func TestCancellationToSelf(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	agents := world(t, 1, true, func(int) *Registry {
		return NewRegistry().MustHandle("cancel.wait", func(ctx context.Context) error {
			close(begun)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		})
	})
	ctx, cancel := context.WithCancel(testContext(t))
	f := Async[any](ctx, agents[0], "w0", "cancel.wait")
	<-begun
	cancel()
	if _, err := f.Await(testContext(t)); cohort.CodeOf(err) != cohort.Canceled {
		t.Errorf("the caller got %v", err)
	}
	ends(t, "the handler", func() {
		if cause := <-ended; !errors.Is(cause, cohort.Canceled) {
			t.Errorf("the handler's context ended by %v", cause)
		}
	})
}

// A request whose caller has gone while it waited for a place is not run.
func TestCancellationInTheQueue(t *testing.T) {
	for _, to := range []string{"w1", "w0"} {
		begun, release := make(chan struct{}), make(chan struct{})
		var ran atomic.Bool
		agents := world(t, 2, true, func(int) *Registry {
			return NewRegistry().
				MustHandle("t.hold", func() { close(begun); <-release }).
				MustHandle("t.late", func() { ran.Store(true) })
		}, WithConcurrency(1))
		ctx := testContext(t)
		hold := Async[any](ctx, agents[0], to, "t.hold")
		<-begun
		short, cancel := context.WithCancel(ctx)
		late := Async[any](short, agents[0], to, "t.late")
		callee := agents[to[1]-'0']
		ends(t, "the arrival of the request", func() {
			for waiting := 0; waiting == 0; {
				_, _, waiting = callee.server.Counts()
			}
		})
		cancel()
		if _, err := late.Await(ctx); cohort.CodeOf(err) != cohort.Canceled {
			t.Errorf("to %s: %v", to, err)
		}
		ends(t, "the news for the callee", func() {
			for callee.server.Abandoned() == 0 {
				runtime.Gosched()
			}
		})
		close(release)
		if _, err := hold.Await(ctx); err != nil {
			t.Error(err)
		}
		if _, err := Call[any](ctx, agents[0], to, "t.unknown"); cohort.CodeOf(err) != cohort.NotFound { // it comes after the late one
			t.Error(err)
		}
		if ran.Load() {
			t.Errorf("to %s: the request ran although its caller had gone", to)
		}
		shutdown(t, agents)
	}
}

// A remote call of a worker to itself that finds no room fails, instead of leaving a reference that waits for ever.
func TestRemoteToSelfWithoutRoom(t *testing.T) {
	begun, release := make(chan struct{}, 1), make(chan struct{})
	agents := world(t, 1, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.hold", func() int { begun <- struct{}{}; <-release; return 7 })
	}, WithConcurrency(1), WithQueue(1))
	ctx := testContext(t)
	var refs []*Ref[int]
	for i := range 3 { // one runs, one waits, one is refused
		ref, err := Remote[int](ctx, agents[0], "w0", "t.hold")
		if err != nil {
			t.Fatal(err)
		}
		if refs = append(refs, ref); i == 0 {
			<-begun
		}
	}
	ends(t, "Fetch", func() {
		if _, err := refs[2].Fetch(ctx); cohort.CodeOf(err) != cohort.Exhausted {
			t.Errorf("refused with %v", err)
		}
	})
	close(release)
	for _, ref := range refs[:2] {
		if v, err := ref.Fetch(ctx); err != nil || v != 7 {
			t.Errorf("%v, %v", v, err)
		}
	}
	for _, ref := range refs {
		_ = ref.Close()
	}
	quiet(t, agents)
	shutdown(t, agents)
}

// narrowWorld has three workers with one place and room for one request each. occupy takes both at w1, until what it returns is called.
func narrowWorld(t *testing.T, opts ...Option) (agents []*Agent, occupy func(context.Context) (release func())) {
	t.Helper()
	begun, over := make(chan struct{}, 1), make(chan struct{})
	agents = world(t, 3, true, func(int) *Registry {
		return refRegistry().MustHandle("t.hold", func() int { begun <- struct{}{}; <-over; return 7 })
	}, append(opts, WithConcurrency(1), WithQueue(1))...)
	return agents, func(ctx context.Context) func() {
		held := []*cohort.Future[int]{Async[int](ctx, agents[0], "w1", "t.hold")}
		<-begun
		held = append(held, Async[int](ctx, agents[0], "w1", "t.hold")) // it waits
		testkit.Until(t, "a request waits", func() bool { return agents[1].DebugInfo()["agent.server_waiting_calls"] > 0 })
		return func() {
			close(over)
			for _, f := range held {
				if v, err := f.Await(ctx); err != nil || v != 7 {
					t.Errorf("%v, %v", v, err)
				}
			}
		}
	}
}

// A request that finds no room is answered with an error, and the references that it brought are given back, to any owner.
func TestReferenceWithoutRoom(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents, occupy := narrowWorld(t, opts...)
		ctx := testContext(t)
		var refs []*Ref[int]
		for _, owner := range []string{"w1", "w2"} {
			ref, err := Remote[int](ctx, agents[0], owner, "objects.int", 3)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = ref.Fetch(ctx); err != nil {
				t.Fatal(err)
			}
			refs = append(refs, ref)
		}
		release := occupy(ctx)
		for _, ref := range refs {
			if _, err := Call[any](ctx, agents[0], "w1", "objects.fetch", ref); err == nil {
				t.Error("there was room")
			}
			_ = ref.Close()
		}
		release()
		quiet(t, agents)
		shutdown(t, agents)
	})
}

// TestCreationWithoutRoom: a fetch of an object whose creation finds no room gets that error, also if its creator has passed the reference
// on before it knew of that.
func TestCreationWithoutRoom(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents, occupy := narrowWorld(t, opts...)
		ctx := testContext(t)
		other, err := Remote[int](ctx, agents[0], "w2", "objects.int", 3)
		if err != nil {
			t.Fatal(err)
		}
		release := occupy(ctx)
		for _, args := range [][]any{{"objects.int", 4}, {"objects.fetch", other}} {
			ref, err := Remote[int](ctx, agents[0], "w1", args[0].(string), args[1]) //nolint:errcheck,forcetypeassert // see above
			if err != nil {
				t.Fatal(err)
			}
			ends(t, "the call of a third worker", func() {
				if _, err := Call[int](ctx, agents[0], "w2", "objects.fetch", ref); err == nil ||
					!strings.Contains(err.Error(), "wait for a slot") {
					t.Errorf("a third worker is told %v", err)
				}
			})
			ends(t, "Fetch", func() {
				if _, err := ref.Fetch(ctx); err == nil || !strings.Contains(err.Error(), "wait for a slot") {
					t.Errorf("the creator is told %v", err)
				}
			})
			_ = ref.Close()
		}
		_ = other.Close()
		release()
		quiet(t, agents)
		shutdown(t, agents)
	})
}
