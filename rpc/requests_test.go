// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cohort-dist/cohort"
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
