// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// sumOf checks that a group works.
func sumOf(ctx context.Context, g *Group) error {
	x := []float64{float64(g.Rank())}
	if err := AllReduceSlice(ctx, g, x, Sum); err != nil {
		return err
	}
	if want := float64(g.Size()*(g.Size()-1)) / 2; x[0] != want {
		return fmt.Errorf("the sum is %v, want %v", x[0], want)
	}
	return nil
}

// TestAgainOverTheSameStore: a group can be followed by another over the same store, whether it was closed, has failed, or is
// still there; the store does not fill up.
func TestAgainOverTheSameStore(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			s := store.NewMemory()
			defer func() { _ = s.Close() }()
			ctx := ctxOf(t)
			const size = 3
			var keys []int
			for round := range 20 {
				groups := newWorldOver(t, s, size, WithTransport(transport))
				must(t, each(size, func(r int) error { return sumOf(ctx, groups[r]) }))
				switch round % 4 {
				case 0: // in order
					closeAll(groups)
				case 1: // after a failure
					groups[1].Barrier(ctx).Abort()
					closeAll(groups)
				case 2: // one rank goes without the others
					must(t, groups[2].Close())
				case 3: // all stay
				}
				n, err := s.NumKeys(ctx)
				must(t, err)
				keys = append(keys, n)
				if round > 7 && n > keys[round-4] {
					t.Fatalf("round %d: %d keys in the store, before there were %d", round, n, keys[round-4])
				}
			}
		})
	}
}

// TestHalfAnAttempt: an attempt that some ranks give up does not hinder the next one.
func TestHalfAnAttempt(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			s := store.NewMemory()
			defer func() { _ = s.Close() }()
			ctx := ctxOf(t)
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			_, err := New(short, s, 0, 3, WithTransport(transport))
			if e := asError(err); e == nil || e.Code != cohort.DeadlineExceeded || e.Rank != 1 ||
				!strings.Contains(err.Error(), "ranks 1 and 2") {
				t.Fatalf("alone: %v", err)
			}
			// Rank 1 is patient; rank 0 gives up twice more before all come.
			patient := make(chan error, 1)
			go func() {
				g, err := New(ctx, s, 1, 3, WithTransport(transport))
				if err == nil {
					err = sumOf(ctx, g)
					defer func() { _ = g.Close() }()
				}
				patient <- err
			}()
			for range 2 {
				short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				if _, err := New(short, s, 0, 3, WithTransport(transport)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("without rank 2: %v", err)
				}
				cancel()
			}
			must(t, each(2, func(i int) error {
				g, err := New(ctx, s, cohort.Rank(2*i), 3, WithTransport(transport))
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = g.Close() })
				return sumOf(ctx, g)
			}))
			must(t, <-patient)
		})
	}
}

// TestRecoveryGroup: a group that is made of the ranks that are left outlives the one that failed.
func TestRecoveryGroup(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := newWorld(t, 4, WithTransport(transport))
			ctx := ctxOf(t)
			must(t, groups[2].Close())
			_ = each(4, func(r int) error {
				if r != 2 {
					if err := groups[r].Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.PeerLost) {
						t.Errorf("rank %d: %v", r, err)
					}
				}
				return nil
			})
			rest := make([]*Group, 4)
			for range 3 { // any number of times
				must(t, each(4, func(r int) (err error) {
					if r == 2 {
						return nil
					}
					if rest[r], err = groups[r].NewGroup(ctx, []cohort.Rank{0, 1, 3}, WithLocalSync()); err != nil {
						return err
					}
					made := rest[r]
					t.Cleanup(func() { _ = made.Close() })
					return sumOf(ctx, made)
				}))
			}
			closeAll(groups)
			must(t, each(4, func(r int) error {
				if r == 2 {
					return nil
				}
				for range 20 { // also when no goroutine waits for each: the timer completes them
					w := rest[r].Barrier(ctx)
					select {
					case <-w.Done():
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return sumOf(ctx, rest[r])
			}))
		})
	}
}
