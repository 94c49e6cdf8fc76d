// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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

// patient is a request that notes when it is given up.
type patient struct {
	ctx      context.Context //nolint:containedctx // of the request
	deadline time.Time
	begun    time.Time
	after    []time.Duration
}

func (p *patient) bounds() (context.Context, time.Time, string) { return p.ctx, p.deadline, "call" }

func (p *patient) giveUp(error) { p.after = append(p.after, time.Since(p.begun)) }

// TestWatch: a request is given up when its time is over or its context ends, at most two ticks late, and not when it was answered.
func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name                             string
		deadline, cancelled, answered    time.Duration // zero means never
		givenUpAfter, andBeforeOrExactly time.Duration // zero means never
	}{
		{name: "a short deadline", deadline: watchInterval, givenUpAfter: watchInterval, andBeforeOrExactly: watchInterval},
		{name: "a long deadline", deadline: time.Minute, givenUpAfter: time.Minute, andBeforeOrExactly: time.Minute},
		{name: "cancelled at once", cancelled: time.Microsecond, givenUpAfter: time.Microsecond, andBeforeOrExactly: 2 * watchInterval},
		{name: "cancelled later", cancelled: time.Second, givenUpAfter: time.Second, andBeforeOrExactly: time.Second},
		{name: "answered at once", deadline: time.Minute, cancelled: time.Second, answered: time.Microsecond},
		{name: "answered later", deadline: time.Minute, cancelled: 2 * time.Second, answered: time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				k := New(Config{Timeout: func() time.Duration { return time.Minute }})
				p := &patient{ctx: ctx, begun: time.Now()}
				if c.deadline > 0 {
					p.deadline = p.begun.Add(c.deadline)
				}
				w := &watch{k: k, of: p}
				w.start()
				if c.cancelled > 0 {
					time.AfterFunc(c.cancelled, cancel)
				}
				if c.answered > 0 {
					time.AfterFunc(c.answered, w.stop)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				switch {
				case c.givenUpAfter == 0 && len(p.after) == 0:
				case len(p.after) != 1 || p.after[0] < c.givenUpAfter || p.after[0] > c.andBeforeOrExactly:
					t.Errorf("given up after %v", p.after)
				}
				if k.watchList.mu.first != nil || k.watchList.mu.last != nil {
					t.Error("it is still noted")
				}
			})
		})
	}
}
