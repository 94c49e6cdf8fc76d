// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/muster"
	"github.com/cohort-dist/cohort/store"
)

// attempts are three ranks that have taken their places and connect.
func attempts(t *testing.T) []*attempt {
	t.Helper()
	s := store.NewMemory()
	t.Cleanup(func() { _ = s.Close() })
	all := make([]*attempt, 3)
	for r := range all {
		p := &Plan{Rank: r, Globals: []int{0, 1, 2}, Store: s, Options: Options{Name: "g", Logger: slog.New(slog.DiscardHandler)}}
		place, err := muster.Take(t.Context(), s, "g", r, len(all), nil)
		if err != nil {
			t.Fatal(err)
		}
		all[r] = &attempt{p: p, Formed: &Formed{Place: place, Verdict: newVerdict(p, place, true)}}
	}
	return all
}

// TestWhoGaveUpIsNotBlamed: rank 2 is stopped. Rank 0 gives up and closes its connections. Rank 1 sees that end first, when its own time
// is not over or when it is, and still names rank 2.
func TestWhoGaveUpIsNotBlamed(t *testing.T) {
	t.Parallel()
	ended := dist.New("shm: join", dist.PeerLost, "the rank gave up")
	ended.Rank = 0
	for name, left := range map[string]time.Duration{"before its own deadline": time.Second, "at its own deadline": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := attempts(t)
				for _, a := range all[:2] {
					if err := a.Place.Waits(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				all[0].Place.GiveUp(t.Context(), giveUpLimit)
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				err := all[1].explain(ctx, ended, false)
				if left > 0 && !errors.Is(err, muster.ErrOver) {
					t.Errorf("the attempt is over, and not only for this rank: %v", err)
				}
				if missing := all[1].p.missing; !slices.Equal(missing, []int{2}) {
					t.Errorf("ranks %v are named, and rank 2 is stopped", missing)
				}
			})
		})
	}
}

// TestSurvivorsOfADeadlineAgree: the time of two ranks is over, one a moment after the other, and rank 2 is stopped. Each has waited for
// both others, and both name rank 2.
func TestSurvivorsOfADeadlineAgree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := attempts(t)
		var done [2]chan struct{}
		for r := range done {
			done[r] = make(chan struct{})
			go func() {
				defer close(done[r])
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r+1)*100*time.Millisecond)
				defer cancel()
				<-ctx.Done()
				late := dist.Ended(ctx, "native: connect")
				late.Rank = dist.Rank(1 - r)
				_ = all[r].explain(ctx, late, false)
			}()
		}
		for r, c := range done {
			<-c
			if missing := all[r].p.missing; !slices.Equal(missing, []int{2}) {
				t.Errorf("rank %d names ranks %v, and rank 2 is stopped", r, missing)
			}
		}
	})
}
