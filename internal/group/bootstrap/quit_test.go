// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/store"
)

// counted counts the questions to a store.
type counted struct {
	*store.Memory
	asked atomic.Int64
}

func (c *counted) Get(ctx context.Context, key string) ([]byte, error) {
	c.asked.Add(1)
	return c.Memory.Get(ctx, key)
}

func (c *counted) Check(ctx context.Context, keys ...string) (bool, error) {
	c.asked.Add(1)
	return c.Memory.Check(ctx, keys...)
}

func (c *counted) Wait(ctx context.Context, keys ...string) error {
	c.asked.Add(1)
	return c.Memory.Wait(ctx, keys...)
}

func (c *counted) Add(ctx context.Context, key string, delta int64) (int64, error) {
	c.asked.Add(1)
	return c.Memory.Add(ctx, key, delta)
}

// following is rank 0 of a group that is made by a reconfiguration. It has come; former are the ranks before of all, -1 for newcomers.
func following(t *testing.T, s store.Store, former ...int) (a *attempt, before []*assemble.Place) {
	t.Helper()
	for r := range slices.Max(former) + 1 {
		place, err := assemble.Take(t.Context(), s, "before", r, slices.Max(former)+1, nil)
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, place)
	}
	p := &Plan{
		Globals: make([]int, len(former)), Store: s, Origin: FromReconfigure, UUID: 1, Former: Former{before[former[0]], former},
		Options: Options{Name: "g", Logger: slog.New(slog.DiscardHandler)},
	}
	place, err := assemble.Take(t.Context(), s, p.keys(), 0, p.size(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &attempt{p: p, Formed: &Formed{Place: place}}, before
}

func (a *attempt) come(t *testing.T, rank int) {
	t.Helper()
	if _, err := assemble.Take(t.Context(), a.p.Store, a.p.keys(), rank, a.p.size(), nil); err != nil {
		t.Fatal(err)
	}
}

// TestWhoHasLeftIsDeclined: rank 2 has closed the group before. Whether rank 1, in front of it, has come with a process
// that has died since, comes later than the first scan, is a newcomer or does not join: within a second rank 0 ends
// every rank's wait for rank 2.
func TestWhoHasLeftIsDeclined(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		former int
		comes  time.Duration
		leaves time.Duration
	}{
		"behind one that died":             {1, 0, 0},
		"behind one that died, late":       {1, 0, time.Minute},
		"behind one that comes later":      {1, 10 * time.Second, time.Minute},
		"behind a newcomer":                {-1, 0, 0},
		"behind a newcomer, late":          {-1, 0, time.Minute},
		"behind a newcomer that is absent": {-1, 2 * time.Minute, 0},
		"behind one that is absent":        {1, 2 * time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := store.NewMemory()
				defer func() { _ = s.Close() }()
				a, before := following(t, s, 0, c.former, max(c.former, 0)+1)
				timers := []*time.Timer{
					time.AfterFunc(c.comes, func() { a.come(t, 1) }),
					time.AfterFunc(c.leaves, func() { before[len(before)-1].AnnounceQuit(t.Context()) }),
				}
				synctest.Wait()
				stop := a.watchQuits(t.Context())
				defer stop()
				time.Sleep(max(c.leaves-time.Millisecond, 0))
				synctest.Wait()
				if c.leaves > 0 && a.Place.Closed(t.Context()) {
					t.Error("the attempt is given up before one has left")
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if !a.Place.Closed(t.Context()) {
					t.Error("a second after rank 2 has left it is waited for")
				}
				if gone, err := a.Place.GaveUp(t.Context()); err != nil || !slices.Equal(gone, []int{2}) {
					t.Errorf("ranks %v have given up, %v", gone, err)
				}
				for _, timer := range timers {
					timer.Stop()
				}
			})
		})
	}
}

// TestWhoHasComeIsNotDeclined: a rank that came and closed the group before afterwards ends the attempt itself, or has it.
func TestWhoHasComeIsNotDeclined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		a, before := following(t, s, 0, 1)
		a.come(t, 1)
		before[1].AnnounceQuit(t.Context())
		stop := a.watchQuits(t.Context())
		time.Sleep(time.Minute)
		stop()
		if a.Place.Closed(t.Context()) {
			t.Error("it was declined in the name of a rank that had come")
		}
	})
}

// TestLookingForManyIsBounded: a rank that waits for many asks the store a few times a second, however many they are and whether some have
// left. All that left came before: so none of them ends the wait.
func TestLookingForManyIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counted{Memory: store.NewMemory()}
		defer func() { _ = s.Close() }()
		const size, left, seconds = 501, 10, 60
		former := make([]int, size)
		for r := range former {
			former[r] = r
		}
		a, before := following(t, s, former...)
		for r := size - left; r < size; r++ {
			a.come(t, r)
			before[r].AnnounceQuit(t.Context())
		}
		synctest.Wait()
		asked := s.asked.Load()
		stop := a.watchQuits(t.Context())
		time.Sleep(seconds * time.Second)
		if asked = s.asked.Load() - asked; asked > 5*seconds+left {
			t.Errorf("%d questions in %d seconds", asked, seconds)
		}
		before[1].AnnounceQuit(t.Context())
		time.Sleep(time.Second)
		synctest.Wait()
		if !a.Place.Closed(t.Context()) {
			t.Error("a second after a rank has left it is waited for")
		}
		stop()
	})
}

// TestTheFirstHasLeft: the new rank 0, for whose claim the others wait, has closed the group before, as another one has
// that is not in the list.
func TestTheFirstHasLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		a, before := following(t, s, 0, 1, 3)
		handles := []string{"gloo:0:1:0:", "gloo:1:1:1:", "gloo:3:1:3:"}
		p := *a.p
		p.Rank, p.UUID, p.Former.Place = 1, 2, before[1]
		before[2].AnnounceQuit(t.Context())
		stop := p.watchFirst(t.Context(), handles)
		time.Sleep(time.Minute)
		before[0].AnnounceQuit(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.claimed(ctx, handles); err != nil {
			t.Error(err)
		}
		stop()
		if open, err := s.Add(t.Context(), p.keys()+"/gen", 0); err != nil || open != 1 {
			t.Errorf("generation %d is open, %v", open, err)
		}
	})
}

// TestWhoGaveUpIsNamed: of a group that can be made only once, all are told who gave it up first, and what to do,
// whether or not PyTorch ranks are among them. A rank that gave up because the first one did is not named.
func TestWhoGaveUpIsNamed(t *testing.T) {
	t.Parallel()
	for origin, advice := range map[Origin]string{FromReconfigure: "another uuid", FromMerge: "prefix of its own"} {
		synctest.Test(t, func(t *testing.T) {
			s := store.NewMemory()
			defer func() { _ = s.Close() }()
			a, _ := following(t, s, 0, 1, 2)
			if a.p.Origin = origin; origin == FromMerge { // its keys are others
				var err error
				if a.Place, err = assemble.Take(t.Context(), s, a.p.keys(), 0, 3, nil); err != nil {
					t.Fatal(err)
				}
			}
			declined := *a.p
			declined.Rank = 2
			declined.decline(t.Context())
			_ = a.Place.GiveUp(t.Context())
			var amongTorch error
			a.watchGivenUp(t.Context(), func(err error) { amongTorch = err })
			for _, err := range []error{a.p.failed(t.Context(), assemble.ErrAttemptAbandoned), amongTorch} {
				if !errors.Is(err, ErrGaveUp) || cohort.CodeOf(err) != cohort.Unavailable || rankOf(err) != 2 ||
					!strings.Contains(err.Error(), advice) {
					t.Errorf("origin %d, and rank 2 gave up: %v", origin, err)
				}
			}
		})
	}
}

// TestWhoHadNotComeIsBlamed: where a rank gave up while another one had not come, the others blame the one that was missing.
func TestWhoHadNotComeIsBlamed(t *testing.T) {
	t.Parallel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	p := &Plan{Store: s, Rank: 0, Globals: []int{0, 1, 2}, Origin: FromMerge}
	for r := range 2 {
		place, err := assemble.Take(t.Context(), s, p.keys(), r, 3, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r == 1 {
			if err = place.GiveUp(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	const said = "rank 1 abandoned the merge before rank 2 had come"
	if err := p.gaveUp(t.Context()); rankOf(err) != 2 || !strings.Contains(err.Error(), said) {
		t.Error(err)
	}
	p.Rank = 2 // it comes later
	if err := p.gaveUp(t.Context()); rankOf(err) != 1 {
		t.Error(err)
	}
}
