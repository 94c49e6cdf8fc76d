// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

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
