// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
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
		if err := agents[0].Shutdown(short); !errors.Is(err, dist.DeadlineExceeded) {
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
