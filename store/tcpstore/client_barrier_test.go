// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestBarrier: the last of its members lets all go on, also when others have given up meanwhile, in every dialect that has it.
func TestBarrier(t *testing.T) {
	for _, d := range []Dialect{DialectNative, DialectV} {
		t.Run(d.String(), func(t *testing.T) {
			s := startServer(t)
			// More members than connections for waits: none may wait for the connection of another.
			c := dialTest(t, s, WithDialect(d), WithWaitConns(1))
			const size = 6
			early, cancel := context.WithCancel(t.Context())
			all := make(chan error, size)
			go func() { all <- c.Barrier(early, "b", size) }()
			testkit.Until(t, "one waits", func() bool { return s.Stats().Waiting == 1 })
			cancel()
			if err := <-all; !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			testkit.Until(t, "the server knows", func() bool { return s.Stats().Waiting == 0 })
			for range size - 2 {
				go func() { all <- c.Barrier(t.Context(), "b", size) }()
			}
			testkit.Until(t, "all but one wait", func() bool { return s.Stats().Waiting == size-2 })
			go func() { all <- c.Barrier(t.Context(), "b", size) }()
			for range size - 1 {
				if err := <-all; err != nil {
					t.Error(err)
				}
			}
			if err := c.Barrier(t.Context(), "b", 0); !errors.Is(err, cohort.InvalidArgument) {
				t.Errorf("of no members: %v", err)
			}
			c.SetTimeout(50 * time.Millisecond)
			err := c.Barrier(context.Background(), "alone", 2)
			if !errors.Is(err, cohort.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "barrier timeout after 50ms, key: alone; fewer than 2 have joined") {
				t.Errorf("alone: %v", err)
			}
			c.SetTimeout(time.Minute)
			if keys, err := c.NumKeys(t.Context()); keys > 2 || err != nil { // those of the barriers; the question has left none
				t.Errorf("%d keys, %v", keys, err)
			}
			_ = c.Close()
			if err := c.Barrier(t.Context(), "c", 1); !errors.Is(err, cohort.Closed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// TestBarrierEndsWithTheClient: Close ends a barrier that waits, also one with a connection of its own.
func TestBarrierEndsWithTheClient(t *testing.T) {
	for _, d := range []Dialect{DialectNative, DialectV} {
		s := startServer(t)
		c := dialTest(t, s, WithDialect(d), WithWaitConns(1))
		all := make(chan error, 3)
		for range cap(all) {
			go func() { all <- c.Barrier(t.Context(), "b", 9) }()
		}
		testkit.Until(t, "they wait", func() bool { return s.Stats().Waiting == cap(all) })
		_ = c.Close()
		for range cap(all) {
			if err := <-all; !errors.Is(err, cohort.Closed) {
				t.Errorf("%v: %v", d, err)
			}
		}
	}
}

// TestBarrierIsRefused: a server that has no barrier is recognised, the error says what to use, and the client goes on.
func TestBarrierIsRefused(t *testing.T) {
	s := startServer(t)
	c := dialTest(t, s, WithDialect(DialectLegacy))
	err := c.Barrier(t.Context(), "b", 2)
	if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), "store.Barrier") {
		t.Errorf("refused with %v", err)
	}
	if err := c.Set(t.Context(), "k", nil); err != nil {
		t.Error(err)
	}
}
