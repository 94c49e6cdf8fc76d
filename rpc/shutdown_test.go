// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// A second Shutdown waits for the first one, which it does not disturb.
func TestShutdownTwice(t *testing.T) {
	for _, static := range []bool{true, false} {
		begun, release := make(chan struct{}), make(chan struct{})
		agents := world(t, 2, static, func(int) *Registry {
			return NewRegistry().MustHandle("t.hold", func() int { close(begun); <-release; return 7 })
		})
		f := Async[int](testContext(t), agents[0], "w1", "t.hold") // keeps the shutdown waiting
		<-begun
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- agents[0].Shutdown(testContext(t)) }()
		for !agents[0].net.Leaving.Load() {
			time.Sleep(time.Millisecond)
		}
		short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		if err := agents[0].Shutdown(short); !errors.Is(err, cohort.DeadlineExceeded) {
			t.Errorf("a second shutdown with little time: %v", err)
		}
		cancel()
		go func() { second <- agents[0].Shutdown(testContext(t)) }()
		select {
		case err := <-first:
			t.Fatalf("the first shutdown ended early: %v", err)
		case err := <-second:
			t.Fatalf("the second shutdown ended early: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		if got, err := f.Await(testContext(t)); err != nil || got != 7 {
			t.Errorf("the call: %v, %v", got, err)
		}
		if err := agents[1].Shutdown(testContext(t)); err != nil {
			t.Errorf("the other worker: %v", err)
		}
		if err := errors.Join(<-first, <-second); err != nil {
			t.Error(err)
		}
	}
}

// Close ends a shutdown that waits.
func TestCloseDuringShutdown(t *testing.T) {
	for _, static := range []bool{true, false} {
		begun := make(chan struct{})
		agents := world(t, 2, static, func(int) *Registry {
			return NewRegistry().MustHandle("t.hold", func(ctx context.Context) { close(begun); <-ctx.Done() })
		})
		_ = Async[any](testContext(t), agents[0], "w1", "t.hold")
		<-begun
		down := make(chan error, 1)
		go func() { down <- agents[0].Shutdown(testContext(t)) }()
		for !agents[0].net.Leaving.Load() {
			time.Sleep(time.Millisecond)
		}
		ends(t, "Close", func() { _ = agents[0].Close() })
		ends(t, "Shutdown", func() {
			if err := <-down; static && err == nil {
				t.Error("a shutdown that was cut short says that all is well")
			}
		})
	}
}

// A shutdown lets what is under way end before it gives references back: fetches of values that are still being made, calls with
// references, and handlers that use the references of the worker which shuts down.
func TestShutdownLetsCallsEnd(t *testing.T) {
	for _, static := range []bool{true, false} {
		for _, wait := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
			begun, release := make(chan struct{}, 8), make(chan struct{})
			hold := func() { begun <- struct{}{}; <-release }
			var kept *Ref[string] // a reference of w1
			reg := NewRegistry().
				MustHandle("t.make", func() string { hold(); return "made" }).
				MustHandle("t.fetch", func(ctx context.Context, r *Ref[string]) (string, error) { hold(); return r.Fetch(ctx) }).
				MustHandle("t.kept", func(ctx context.Context) (string, error) { hold(); return kept.Fetch(ctx) }).
				MustHandle("t.quick", func() string { return "quick" })
			agents := world(t, 3, static, func(int) *Registry { return reg })
			ctx := testContext(t)
			var err error
			if kept, err = Remote[string](ctx, agents[1], "w2", "t.quick"); err != nil {
				t.Fatal(err)
			}
			if err = kept.Confirmed(ctx); err != nil {
				t.Fatal(err)
			}
			made, err := Remote[string](ctx, agents[0], "w1", "t.make")
			if err != nil {
				t.Fatal(err)
			}
			quick, err := Remote[string](ctx, agents[0], "w1", "t.quick")
			if err != nil {
				t.Fatal(err)
			}
			type outcome struct {
				what, want string
				value      string
				err        error
			}
			all := make(chan outcome, 8)
			do := func(what, want string, fn func() (string, error)) {
				go func() {
					v, err := fn()
					all <- outcome{what, want, v, err}
				}()
			}
			do("a fetch of what is being made", "made", func() (string, error) { return made.Fetch(ctx) })
			do("a call with a reference", "quick", func() (string, error) { return Call[string](ctx, agents[0], "w2", "t.fetch", quick) })
			do("a handler that uses a reference of its worker", "quick",
				func() (string, error) { return Call[string](ctx, agents[0], "w1", "t.kept") })
			for range 3 {
				<-begun
			}
			down := make(chan error, len(agents))
			for _, a := range agents {
				go func() { down <- a.Shutdown(ctx) }()
			}
			time.Sleep(wait)
			if len(down) > 0 {
				t.Errorf("static=%v: a shutdown ended before the calls under way: %v", static, <-down)
			}
			close(release)
			for range 3 {
				if o := <-all; o.err != nil || o.value != o.want {
					t.Errorf("static=%v after %v: %s: %q, %v", static, wait, o.what, o.value, o.err)
				}
			}
			for range agents {
				if err := <-down; err != nil {
					t.Errorf("static=%v after %v: %v", static, wait, err)
				}
			}
		}
	}
}

// A handler that does not return keeps a shutdown no longer than its ctx allows; when its caller has given up, not at all. A
// handler can shut down its own worker.
func TestShutdownDoesNotWaitForTheDead(t *testing.T) {
	for _, static := range []bool{true, false} {
		begun, release := make(chan struct{}, 1), make(chan struct{})
		t.Cleanup(func() { close(release) })
		reg := NewRegistry().
			MustHandle("t.stuck", func() { begun <- struct{}{}; <-release }).
			MustHandle("t.stop", func(ctx context.Context) error { return AgentFrom(ctx).callsEnd(ctx) })
		agents := world(t, 2, static, func(int) *Registry { return reg })
		giveUp, cancel := context.WithCancel(testContext(t))
		call := Async[any](giveUp, agents[0], "w1", "t.stuck")
		<-begun
		if _, err := Call[any](testContext(t), agents[0], "w1", "t.stop"); err != nil {
			t.Errorf("static=%v: a handler that ends its own worker: %v", static, err)
		}
		short, end := context.WithTimeout(context.Background(), 50*time.Millisecond)
		ends(t, "callsEnd", func() {
			if err := agents[1].callsEnd(short); !errors.Is(err, cohort.DeadlineExceeded) {
				t.Errorf("static=%v: with a caller that waits: %v", static, err)
			}
		})
		end()
		cancel()
		if _, err := call.Await(testContext(t)); !errors.Is(err, cohort.Canceled) {
			t.Errorf("static=%v: the call: %v", static, err)
		}
		shutdown(t, agents)
	}
}

// TestShutdownGivenUp: w2 does not come. The shutdown of one worker ends with its ctx, and the other one, leader of the all-gather or
// not, ends with that instead of taking the first one for dead.
func TestShutdownGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first  int // who gives up
		cancel bool
		code   cohort.Code // of the other
	}{
		"the leader's deadline":  {0, false, cohort.DeadlineExceeded},
		"a follower's deadline":  {1, false, cohort.DeadlineExceeded},
		"the leader's cancel":    {0, true, cohort.Aborted},
		"a follower is canceled": {1, true, cohort.Aborted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agents := world(t, 3, true, func(int) *Registry { return NewRegistry() })
			ctx, stop := context.WithTimeout(testContext(t), 500*time.Millisecond)
			if c.cancel {
				stop()
				ctx, stop = context.WithCancel(testContext(t))
				time.AfterFunc(500*time.Millisecond, stop)
			}
			defer stop()
			first, other := agents[c.first], agents[1-c.first]
			ended := make(chan error, 1)
			go func() { ended <- other.Shutdown(testContext(t)) }()
			if err := first.Shutdown(ctx); !errors.Is(err, ctx.Err()) {
				t.Errorf("%s: %v", first.Name(), err)
			}
			err := <-ended
			if cohort.CodeOf(err) != c.code || !strings.Contains(err.Error(), "abandoned its shutdown") ||
				!strings.Contains(err.Error(), first.Name()) {
				t.Errorf("%s: %v", other.Name(), err)
			}
		})
	}
}

// TestCloseIsNoGivingUp: w2 does not come, and w0 closes its agent during its shutdown. It is lost to w1, and not one that gave up.
func TestCloseIsNoGivingUp(t *testing.T) {
	t.Parallel()
	agents := world(t, 3, true, func(int) *Registry { return NewRegistry() })
	ended := [2]chan error{make(chan error, 1), make(chan error, 1)}
	for i, ch := range ended {
		go func() { ch <- agents[i].Shutdown(testContext(t)) }()
	}
	for !agents[0].net.Leaving.Load() {
		time.Sleep(time.Millisecond)
	}
	_ = agents[0].Close()
	if err := <-ended[0]; !errors.Is(err, cohort.Closed) {
		t.Errorf("w0: %v", err)
	}
	if err := <-ended[1]; !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "w0") {
		t.Errorf("w1: %v", err)
	}
}

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

// TestAllGatherComesTooLate: a worker that comes to an all-gather after its leader has given it up gets an error. It has no
// connection from the leader to it by which it could have learned of it before.
func TestAllGatherComesTooLate(t *testing.T) {
	reg := func(int) *Registry { return NewRegistry().MustHandle("math.add", func(a, b int) int { return a + b }) }
	agents := world(t, 3, false, reg, WithTransports(TransportUV))
	ctx := testContext(t)
	if _, err := Call[int](ctx, agents[0], "w2", "math.add", 1, 2); err != nil {
		t.Fatal(err)
	}
	_ = agents[2].Close()
	for _, a := range agents[:2] {
		begun := time.Now()
		_, err := AllGather(ctx, a, 1)
		if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.PeerLost || e.Peer != "w2" {
			t.Errorf("%s: %v", a.Name(), err)
		}
		if waited := time.Since(begun); waited > 20*time.Second {
			t.Errorf("%s has waited %v", a.Name(), waited)
		}
	}
}
