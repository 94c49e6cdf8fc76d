// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/store"
)

// pair is a round of two members, of which the first finishes.
type pair struct {
	store   store.Store
	members []*elastic.Member
}

func newPair(ctx context.Context, t *testing.T) *pair {
	t.Helper()
	p := &pair{store: store.NewMemory()}
	for range 2 {
		m, err := elastic.Join(ctx, p.store, silence)
		if err != nil {
			t.Fatal(err)
		}
		p.members = append(p.members, m)
	}
	return p
}

func (p *pair) close() {
	for _, m := range p.members {
		_ = m.Close()
	}
	_ = p.store.Close()
}

// coordinate runs a coordinator until end is called, which waits for it.
func (p *pair) coordinate(ctx context.Context, t *testing.T, lastCall time.Duration) (c *elastic.Coordinator, end func()) {
	t.Helper()
	c, err := elastic.New(p.store, 1, 2, silence, elastic.WithLastCall(lastCall))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	return c, func() {
		cancel()
		wg.Wait()
	}
}

// oneFinishes has both members begin a round; then the first one finishes, and the second one asks for the next round.
func (p *pair) oneFinishes(ctx context.Context, t *testing.T) (next <-chan elastic.Round) {
	t.Helper()
	var wg sync.WaitGroup
	for i, m := range p.members {
		wg.Go(func() {
			if _, err := m.Next(ctx, []string{"a", "b"}[i]); err != nil {
				t.Errorf("member %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	wg.Go(func() {
		if err := p.members[0].Done(ctx); err != nil {
			t.Errorf("done: %v", err)
		}
	})
	time.Sleep(time.Second)
	rounds := make(chan elastic.Round, 1)
	go func() {
		defer close(rounds)
		r, err := p.members[1].Next(ctx, "b2")
		if err != nil {
			t.Errorf("next: %v", err)
		}
		rounds <- r
	}()
	wg.Wait()
	return rounds
}

// TestFinishedBeforeRestart: a coordinator that is started again does not wait for a member that was notified that it
// may leave, although its process lives.
func TestFinishedBeforeRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		p := newPair(ctx, t)
		defer p.close()
		_, end := p.coordinate(ctx, t, time.Minute)
		rounds := p.oneFinishes(ctx, t)
		end()
		from := time.Now()
		_, end = p.coordinate(ctx, t, time.Second)
		defer end()
		if r := <-rounds; !slices.Equal(r.Handles, []string{"b2"}) || time.Since(from) > 10*time.Second {
			t.Errorf("%v after %v", r.Handles, time.Since(from))
		}
	})
}

// TestFinishedIsNotSilent: a member that was notified that it may leave, and goes, is not one that may hang.
func TestFinishedIsNotSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		p := newPair(ctx, t)
		defer p.close()
		c, end := p.coordinate(ctx, t, time.Second)
		defer end()
		<-p.oneFinishes(ctx, t)
		_ = p.members[0].Close()
		time.Sleep(time.Minute)
		if silent := c.Silent(); len(silent) > 0 {
			t.Errorf("silent: %v", silent)
		}
	})
}
