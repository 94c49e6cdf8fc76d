// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/cohort-dist/cohort"
)

// TestActive: calls wait while the gate is closed, a goroutine that waits for the last one is notified, and both waits end with their
// contexts.
func TestActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c activeCalls
		if err := c.Idle(t.Context()); err != nil {
			t.Errorf("nothing is under way: %v", err)
		}
		for range 2 {
			if err := c.Enter(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		short, cancel := context.WithCancel(t.Context())
		gaveUp, idle := make(chan error, 1), make(chan error, 2)
		go func() { gaveUp <- c.Idle(short) }()
		for range 2 {
			go func() { idle <- c.Idle(t.Context()) }()
		}
		synctest.Wait()
		cancel()
		if err := <-gaveUp; cohort.CodeOf(err) != cohort.Canceled {
			t.Errorf("the wait that was given up: %v", err)
		}
		c.Leave()
		synctest.Wait()
		if len(idle) > 0 || c.Count() != 1 {
			t.Errorf("%d calls are under way, %d waits have ended", c.Count(), len(idle))
		}
		c.Leave()
		for range 2 {
			if err := <-idle; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c activeCalls
		if !c.TryEnter() {
			t.Fatal("the gate is closed")
		}
		if n := c.Freeze(); n != 1 {
			t.Errorf("%d calls", n)
		}
		if n := c.Freeze(); n != 1 || c.TryEnter() { // twice is once
			t.Errorf("%d calls behind a closed gate", n)
		}
		short, cancel := context.WithCancel(t.Context())
		gaveUp, entered := make(chan error, 1), make(chan error, 3)
		go func() { gaveUp <- c.Enter(short) }()
		for range 3 {
			go func() { entered <- c.Enter(t.Context()) }()
		}
		synctest.Wait()
		cancel()
		if err := <-gaveUp; cohort.CodeOf(err) != cohort.Canceled {
			t.Errorf("the call that was given up: %v", err)
		}
		c.Leave() // one may end behind it
		if len(entered) > 0 || c.Count() != 0 {
			t.Errorf("%d calls came through, %d are counted", len(entered), c.Count())
		}
		c.Thaw()
		c.Thaw()
		for range 3 {
			if err := <-entered; err != nil {
				t.Error(err)
			}
		}
		if c.Count() != 3 {
			t.Errorf("%d calls are counted", c.Count())
		}
	})
}
