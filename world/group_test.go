// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/world"
)

// joinAll has size ranks meet over a file and runs f in each.
func joinAll(t *testing.T, size int, opts []world.Option, f func(ctx context.Context, w *world.World) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	url := fmt.Sprintf("file://%s?world_size=%d", filepath.Join(t.TempDir(), "job"), size)
	var ranks sync.WaitGroup
	for r := range size {
		ranks.Go(func() {
			w, err := world.Join(ctx, fmt.Sprintf("%s&rank=%d", url, r), opts...)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = w.Close() }()
			if err := f(ctx, w); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	ranks.Wait()
}

func TestWorldGroup(t *testing.T) {
	var mu sync.Mutex
	seen := map[observe.Kind]int{}
	opts := []world.Option{
		world.WithTimeout(30 * time.Second), world.WithGroup(group.WithTransport(group.TCP)),
		world.WithHook(func(e observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			seen[e.Kind]++
		}),
	}
	const size = 3
	joinAll(t, size, opts, func(ctx context.Context, w *world.World) error {
		// Many callers, one group.
		groups := make([]*group.Group, 8)
		errs := make([]error, len(groups))
		var callers sync.WaitGroup
		for i := range groups {
			callers.Go(func() { groups[i], errs[i] = w.Group(ctx) })
		}
		callers.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		g := groups[0]
		for _, other := range groups {
			if other != g {
				return errors.New("two groups")
			}
		}
		if g.Rank() != w.Rank() || g.Size() != size || g.Transport() != group.TCP || g.Timeout() != 30*time.Second {
			return fmt.Errorf("rank %d of %d over %s, timeout %v", g.Rank(), g.Size(), g.Transport(), g.Timeout())
		}
		for range 50 {
			x := []float64{float64(w.Rank()), 1}
			if err := group.AllReduceSlice(ctx, g, x, group.Sum); err != nil {
				return err
			}
			if x[0] != 3 || x[1] != size {
				return fmt.Errorf("sum %v", x)
			}
		}
		// No rank waits for the others here: what is complete stays complete when the quickest leave.
		if err := w.Shutdown(ctx); err != nil {
			return err
		}
		if _, err := w.Group(ctx); !errors.Is(err, cohort.Closed) {
			return fmt.Errorf("group of a world that was left: %w", err)
		}
		if err := g.Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.Closed) {
			return fmt.Errorf("the group did not end with the world: %w", err)
		}
		return nil
	})
	if seen["group.all_reduce"] != 2*50*size {
		t.Errorf("%d events of all-reduces, want %d", seen["group.all_reduce"], 2*50*size)
	}
}

// TestWorldGroupAlone: the other rank does not make the group; ctx ends the wait, and so does Close.
func TestWorldGroupAlone(t *testing.T) {
	came := make(chan struct{})
	joinAll(t, 2, nil, func(ctx context.Context, w *world.World) error {
		if w.Rank() == 1 {
			<-came
			return nil
		}
		defer close(came)
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := w.Group(short); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("end of ctx: %w", err)
		}
		made := make(chan error, 1)
		go func() {
			_, err := w.Group(ctx)
			made <- err
		}()
		time.Sleep(50 * time.Millisecond)
		if err := w.Close(); err != nil {
			return err
		}
		select {
		case err := <-made:
			if !errors.Is(err, cohort.Closed) {
				return fmt.Errorf("closed meanwhile: %w", err)
			}
		case <-time.After(5 * time.Second):
			return errors.New("Close did not end the making of the group")
		}
		return nil
	})
}
