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
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
)

// pipes returns two workers that are connected by pipes, as with PyTorch workers, after calls that were short and came
// one after the other: the next one runs in the goroutine that reads.
func pipes(t *testing.T, reg *Registry) (context.Context, *Agent) {
	t.Helper()
	reg.MustHandle("pipe.echo", func(n int) int { return n })
	agents := world(t, 2, true, func(int) *Registry { return reg }, WithTransports(TransportUV))
	ctx := testContext(t)
	echoes(ctx, t, agents[0])
	return ctx, agents[0]
}

func void(ctx context.Context, a *Agent, to, fn string) error {
	_, err := Call[any](ctx, a, to, fn)
	return err
}

func echoes(ctx context.Context, t *testing.T, a *Agent) {
	t.Helper()
	for n := range 20 {
		if v, err := Call[int](ctx, a, "w1", "pipe.echo", n); err != nil || v != n {
			t.Fatalf("call %d: %d, %v", n, v, err)
		}
	}
}

// TestLongHandlerOnPipe makes a handler wait for another request on the same pipe, in every way a handler can.
func TestLongHandlerOnPipe(t *testing.T) {
	for _, way := range []string{"block", "compute", "call"} {
		t.Run(way, func(t *testing.T) {
			release, begun := make(chan struct{}, 1), make(chan struct{}, 1)
			released := atomic.Bool{}
			reg := NewRegistry().
				MustHandle("pipe.release", func() { released.Store(true); release <- struct{}{} }).
				MustHandle("pipe.block", func(ctx context.Context) error {
					begun <- struct{}{}
					select {
					case <-release:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}).
				MustHandle("pipe.compute", func(ctx context.Context) error {
					begun <- struct{}{}
					for !released.Load() && ctx.Err() == nil {
						runtime.Gosched()
					}
					<-release
					return ctx.Err()
				}).
				MustHandle("pipe.call", func(ctx context.Context) error {
					return void(ctx, AgentFrom(ctx), "w0", "pipe.block")
				})
			ctx, a := pipes(t, reg)
			for range 5 {
				released.Store(false)
				done := make(chan error, 1)
				go func() { done <- void(ctx, a, "w1", "pipe."+way) }()
				select {
				case <-begun:
				case err := <-done:
					t.Fatal(err)
				}
				echoes(ctx, t, a)
				to := "w1"
				if way == "call" {
					to = "w0"
				}
				if err := void(ctx, a, to, "pipe.release"); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				echoes(ctx, t, a)
			}
		})
	}
}

// TestHandlerEndsItsGoroutine calls a handler that ends the goroutine it runs in: its call fails, no other does.
func TestHandlerEndsItsGoroutine(t *testing.T) {
	reg := NewRegistry().MustHandle("pipe.exit", func() { runtime.Goexit() })
	ctx, a := pipes(t, reg)
	for range 3 {
		if err := void(ctx, a, "w1", "pipe.exit"); !errors.Is(err, cohort.Remote) {
			t.Errorf("a call of a handler that does not return: %v", err)
		}
		echoes(ctx, t, a)
	}
}

// TestHandlersRunSideBySide has handlers of one caller that wait for each other.
func TestHandlersRunSideBySide(t *testing.T) {
	const calls = 16
	var running atomic.Int32
	all := make(chan struct{})
	reg := NewRegistry().MustHandle("pipe.meet", func(ctx context.Context) error {
		if running.Add(1) == calls {
			close(all)
		}
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	ctx, a := pipes(t, reg)
	errs := make(chan error, calls)
	for range calls {
		go func() { errs <- void(ctx, a, "w1", "pipe.meet") }()
	}
	for range calls {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

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

// TestBadFramesCostNoGoroutines sends requests that cannot be read to a worker and does not read the answers: their number
// does not show in its goroutines, and in the end it cuts the peer.
func TestBadFramesCostNoGoroutines(t *testing.T) {
	agents := world(t, 2, true, func(int) *Registry { return NewRegistry().MustHandle("bad.echo", func(n int) int { return n }) })
	ctx := testContext(t)
	if v, err := Call[int](ctx, agents[0], "w1", "bad.echo", 1); err != nil || v != 1 {
		t.Fatal(v, err)
	}
	p, err := agents[0].net.Peer("w1")
	if err != nil {
		t.Fatal(err)
	}
	link := p.Current().Link
	before, most := runtime.NumGoroutine(), 0
	for i := range 20_000 {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		err = link.Send(bounded, &cohortwire.Frame{Type: 0x102, ID: uint64(1_000_000 + i), Payload: []byte{1}})
		cancel()
		if err != nil {
			break // cut
		}
		if i%100 == 0 {
			most = max(most, runtime.NumGoroutine())
		}
	}
	if most > before+50 {
		t.Errorf("%d goroutines, %d before", most, before)
	}
	v, err := Call[int](ctx, agents[0], "w1", "bad.echo", 2)
	if cohort.CodeOf(err) == cohort.PeerLost { // the link was cut after the last frame: the next call makes another
		v, err = Call[int](ctx, agents[0], "w1", "bad.echo", 2)
	}
	if err != nil || v != 2 {
		t.Fatalf("afterwards: %d, %v", v, err)
	}
}
