// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store"
)

// TestMemberGroup: three members train with the groups of their rounds. One of them dies; the others go on in a group of two, and finish.
func TestMemberGroup(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	c, err := elastic.New(s, 2, 3, options[0], options[1])
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var sizes []int
	process := func(dies bool) error {
		m, err := elastic.Join(ctx, s, silence)
		if err != nil {
			return err
		}
		defer func() { _ = m.Close() }()
		for {
			g, err := m.Group(ctx, s, group.WithTimeout(20*time.Second))
			if err != nil {
				return err
			}
			mu.Lock()
			sizes = append(sizes, g.Size())
			mu.Unlock()
			if dies && g.Size() == 3 {
				return errDies // without a word to the others
			}
			// The groups of two are perhaps the first ones, before the third member has come: all leave those together.
			sum, err := group.AllGatherSlice(ctx, g, []int{int(m.ID())})
			if over, failure := m.Over(ctx); err != nil || failure != nil || over {
				continue
			}
			if mu.Lock(); slices.Contains(sizes, 3) && len(sum) == 2 {
				mu.Unlock()
				return m.Done(ctx)
			}
			mu.Unlock()
			for ended := false; !ended; { // until the third one comes
				if ended, err = m.Over(ctx); err != nil {
					return err
				}
				if _, err = group.AllGatherSlice(ctx, g, []int{0}); err != nil {
					ended = true
				}
			}
		}
	}
	var all sync.WaitGroup
	all.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("the coordinator: %v", err)
		}
	})
	for i := range 3 {
		all.Go(func() {
			if err := process(i == 0); err != nil && (i != 0 || !errors.Is(err, errDies)) {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if !slices.Contains(sizes, 3) || !slices.Contains(sizes, 2) {
		t.Errorf("groups of %v", sizes)
	}
}

// TestMemberGroupEnds: a group that was closed, and a context that has ended, end the wait.
func TestMemberGroupEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	c, err := elastic.New(s, 1, 1, options[0], options[1])
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(ctx)
	var run sync.WaitGroup
	run.Go(func() { _ = c.Run(running) })
	defer run.Wait()
	defer end()
	m, err := elastic.Join(ctx, s, silence)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	g, err := m.Group(ctx, s)
	if err != nil || g.Size() != 1 {
		t.Fatal(g, err)
	}
	ended, stop := context.WithCancel(ctx)
	stop()
	if _, err := m.Group(ended, s); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Group(ctx, s); cohort.CodeOf(err) != cohort.Closed {
		t.Errorf("after the group was closed: %v", err)
	}
}
