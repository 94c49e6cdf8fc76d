// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
	"time"
)

// ends fails the test when fn does not return.
func ends(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { fn(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not return", what)
	}
}

// A worker may be told by a call to go away: its handler closes the agent that runs it.
func TestCloseInHandler(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		for _, from := range []string{"w0", "w1"} { // of another worker, and of itself
			t.Run("for "+from, func(t *testing.T) {
				returned := make(chan error, 1)
				agents := world(t, 2, true, func(int) *Registry {
					return NewRegistry().MustHandle("go.away", func(ctx context.Context) { returned <- AgentFrom(ctx).Close() })
				}, opts...)
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				caller := agents[0]
				if from == "w1" {
					caller = agents[1]
				}
				ends(t, "the call", func() { _, _ = Call[any](ctx, caller, "w1", "go.away") })
				select {
				case err := <-returned:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("Close does not return in the handler")
				}
				ends(t, "Close from outside", func() { _ = agents[1].Close() })
			})
		}
	})
}

// The callback of a future runs in the goroutine that reads.
func TestCloseInCallback(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 2, true, func(int) *Registry {
			return NewRegistry().MustHandle("t.slow", func() { time.Sleep(20 * time.Millisecond) })
		}, opts...)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		closed := make(chan struct{})
		Async[any](ctx, agents[0], "w1", "t.slow").OnDone(func(any, error) { _ = agents[0].Close(); close(closed) })
		ends(t, "the callback", func() { <-closed })
		ends(t, "Close from outside", func() { _ = agents[0].Close() })
	})
}

// Close ends the calls under way, and the callback of one of them closes the agent, too.
func TestCloseWithinClose(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		for _, to := range []string{"w1", "w0"} {
			t.Run("to "+to, func(t *testing.T) {
				begun := make(chan struct{}, 1)
				agents := world(t, 2, true, func(int) *Registry {
					return NewRegistry().MustHandle("t.hang", func(ctx context.Context) { begun <- struct{}{}; <-ctx.Done() })
				}, opts...)
				closed := make(chan struct{})
				Async[any](testContext(t), agents[0], to, "t.hang").OnDone(func(any, error) { _ = agents[0].Close(); close(closed) })
				<-begun
				ends(t, "Close", func() { _ = agents[0].Close() })
				ends(t, "the callback", func() { <-closed })
				ends(t, "the agent", func() { <-agents[0].Done() })
			})
		}
	})
}

// TestCloseGivesMemoryBack: a closed agent keeps no blocks for what it might receive.
func TestCloseGivesMemoryBack(t *testing.T) {
	a := world(t, 1, true, nil)[0]
	origin := func() string {
		s, err := a.memory.Get(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
		return s.Origin()
	}
	kept := origin()
	_ = a.Close()
	<-a.Done()
	if after := origin(); after == kept && !raceEnabled { // nothing is recycled under the race detector
		t.Errorf("memory is %q before and after", after)
	}
}

// A handler that ignores the end of its context does not hold up Close; Done is closed when it has ended.
func TestCloseWithStubbornHandler(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	agents := world(t, 2, true, func(int) *Registry {
		return NewRegistry().MustHandle("t.stubborn", func() { close(begun); <-release })
	})
	f := Async[any](testContext(t), agents[0], "w1", "t.stubborn")
	<-begun
	ends(t, "Close", func() { _ = agents[1].Close() })
	select {
	case <-agents[1].Done():
		t.Error("the agent says that its handler has ended")
	default:
	}
	close(release)
	ends(t, "the agent", func() { <-agents[1].Done() })
	if _, err := f.Await(testContext(t)); err == nil {
		t.Error("the call was answered by a closed worker")
	}
}

// The answer to a call of a worker to itself comes after its caller has gone: what it brings is closed.
func TestLateAnswerToSelf(t *testing.T) {
	release, made := make(chan struct{}), make(chan *Ref[int], 1)
	agents := world(t, 2, true, func(int) *Registry {
		return NewRegistry().
			MustHandle("t.made", func() int { return 7 }).
			MustHandle("t.late", func(ctx context.Context) (*Ref[int], error) {
				ref, err := Remote[int](context.Background(), AgentFrom(ctx), "w1", "t.made")
				made <- ref
				<-release
				return ref, err
			})
	})
	a := agents[0]
	ctx, cancel := context.WithCancel(testContext(t))
	late := Async[*Ref[int]](ctx, a, "w0", "t.late")
	ref := <-made
	cancel()
	if _, err := late.Await(testContext(t)); err == nil {
		t.Error("a call that was given up is answered")
	}
	close(release)
	for a.DebugInfo()["agent.server_active_calls"] > 0 { // until it has answered
		time.Sleep(time.Millisecond)
	}
	_ = ref.Close() // the handler's own
	quiet(t, agents)
	if n := a.refs.Collected.Load(); n != 0 {
		t.Errorf("%d references were left to the garbage collector", n)
	}
	shutdown(t, agents)
}
