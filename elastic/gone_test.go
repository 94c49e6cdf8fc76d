// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// TestMemberAndSpareGoTogether: if a member and a spare are found to be gone at the same time, the next round begins without both.
func TestMemberAndSpareGoTogether(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	c, err := New(s, 1, 2, WithLastCall(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	members := make([]*Member, 3)
	rounds := make([]chan Round, 3)
	ask := func(i int, handle string) {
		if members[i] == nil {
			if members[i], err = Join(ctx, s); err != nil {
				t.Fatal(err)
			}
			rounds[i] = make(chan Round, 1)
		}
		go func() {
			if r, failure := members[i].Next(ctx, handle); failure == nil {
				rounds[i] <- r
			}
		}()
	}
	next := func(i int) Round {
		select {
		case r := <-rounds[i]:
			return r
		case <-ctx.Done():
			t.Fatal("no round")
			return Round{}
		}
	}
	ask(0, "a")
	ask(1, "b")
	if r := next(0); len(r.Handles) != 2 {
		t.Fatalf("the second one came late: %v", r)
	}
	next(1)
	ask(2, "c")
	ask(0, "a again")
	defer func() {
		for _, m := range members {
			_ = m.Close()
		}
	}()
	for {
		if n, failure := s.Add(ctx, DefaultPrefix+"/asks", 0); failure != nil || n >= 4 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.mu.Lock()
	c.mu.lost = append(c.mu.lost, members[1].ID(), members[2].ID())
	c.mu.Unlock()
	if r := next(0); !slices.Equal(r.Handles, []string{"a again"}) {
		t.Errorf("the round has %v", r.Handles)
	}
}
