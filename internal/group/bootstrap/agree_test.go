// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/store"
)

// attempts are ranks that have taken their places and connect.
func attempts(t *testing.T, size int) []*attempt {
	t.Helper()
	s := store.NewMemory()
	t.Cleanup(func() { _ = s.Close() })
	all := make([]*attempt, size)
	for r := range all {
		p := &Plan{Rank: r, Globals: make([]int, size), Store: s, Options: Options{Name: "g", Logger: slog.New(slog.DiscardHandler)}}
		place, err := assemble.Take(t.Context(), s, "g", r, len(all), nil)
		if err != nil {
			t.Fatal(err)
		}
		all[r] = &attempt{p: p, Formed: &Formed{Members: make([]member, p.size()), Place: place, Failure: newFailure(p, place, true)}}
	}
	return all
}

// TestWhoGaveUpIsNotBlamed: rank 2 is stopped. Rank 0 gives up and closes its connections. Rank 1 sees that end first, when its own time
// is not over or when it is, and still names rank 2.
func TestWhoGaveUpIsNotBlamed(t *testing.T) {
	t.Parallel()
	ended := cohort.New("shm: join", cohort.PeerLost, "the rank gave up")
	ended.Rank = 0
	for name, left := range map[string]time.Duration{"before its own deadline": time.Second, "at its own deadline": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				all := attempts(t, 3)
				_ = all[0].Place.GiveUp(t.Context())
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				err := all[1].explain(ctx, ended, false)
				if left > 0 && !errors.Is(err, assemble.ErrAttemptAbandoned) {
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
		all := attempts(t, 3)
		var done [2]chan struct{}
		for r := range done {
			done[r] = make(chan struct{})
			go func() {
				defer close(done[r])
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r+1)*100*time.Millisecond)
				defer cancel()
				<-ctx.Done()
				late := cohort.Ended(ctx, "native: connect")
				late.Rank = cohort.Rank(1 - r)
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

// TestSurvivorsOfTwoNameTheSame: ranks 2 and 3 are stopped. One survivor saw the connection to the first of them end, the other that to the
// second. They name the same one, and say that both are missing or only that one.
func TestSurvivorsOfTwoNameTheSame(t *testing.T) {
	t.Parallel()
	for _, saw := range [][2]cohort.Rank{{2, 3}, {3, 2}, {cohort.NoRank, 3}, {3, cohort.NoRank}} {
		synctest.Test(t, func(t *testing.T) {
			all := attempts(t, 4)
			var wg sync.WaitGroup
			for r, rank := range saw {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r+1)*100*time.Millisecond)
					defer cancel()
					<-ctx.Done()
					late := cohort.Ended(ctx, "native: connect")
					late.Rank = rank
					_ = all[r].explain(ctx, late, false)
				})
			}
			wg.Wait()
			if a, b := all[0].p.missing, all[1].p.missing; len(a) == 0 || len(b) == 0 || a[0] != b[0] || a[0] < 2 {
				t.Errorf("they saw the ends of ranks %v: one names ranks %v, the other ranks %v", saw, a, b)
			}
		})
	}
}

// TestLateForAGroupThatIsMade: the time of rank 0 is over just as the group is made. It blames no rank, and leaves no reason in the store
// that the others would take for that of the end of the group.
func TestLateForAGroupThatIsMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := attempts(t, 3)
		var wg sync.WaitGroup
		for _, a := range all {
			wg.Go(func() {
				if err := a.Place.Connected(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		_ = all[0].explain(ctx, cohort.Ended(ctx, "group: new"), false)
		if missing := all[0].p.missing; len(missing) > 0 {
			t.Errorf("ranks %v are named, and all have come", missing)
		}
		lost := cohort.New("native: read", cohort.PeerLost, "the rank has closed its end")
		lost.Rank = 0
		all[1].Failure.forming.Store(false)
		if err := all[1].Failure.Judge(lost); !errors.Is(err, cohort.PeerLost) || rankOf(err) != 0 {
			t.Errorf("rank 1 says %v, and rank 0 is gone", err)
		}
	})
}

// frozen is a store that answers nothing once it is stopped, whatever it is asked. It has none of the optional abilities of stores.
type frozen struct {
	store.Store
	now atomic.Bool
}

func (s *frozen) gate(ctx context.Context) error {
	if s.now.Load() {
		<-ctx.Done()
		return cohort.FromContext(ctx, "store")
	}
	return nil
}

func (s *frozen) Set(ctx context.Context, key string, value []byte) error {
	if err := s.gate(ctx); err != nil {
		return err
	}
	return s.Store.Set(ctx, key, value)
}

func (s *frozen) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.gate(ctx); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, key)
}

func (s *frozen) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if err := s.gate(ctx); err != nil {
		return 0, err
	}
	return s.Store.Add(ctx, key, delta)
}

func (s *frozen) CompareAndSet(ctx context.Context, key string, old, value []byte) ([]byte, error) {
	if err := s.gate(ctx); err != nil {
		return nil, err
	}
	return s.Store.CompareAndSet(ctx, key, old, value)
}

func (s *frozen) Check(ctx context.Context, keys ...string) (bool, error) {
	if err := s.gate(ctx); err != nil {
		return false, err
	}
	return s.Store.Check(ctx, keys...)
}

func (s *frozen) Wait(ctx context.Context, keys ...string) error {
	if err := s.gate(ctx); err != nil {
		return err
	}
	return s.Store.Wait(ctx, keys...)
}

func (s *frozen) Delete(ctx context.Context, key string) (bool, error) {
	if err := s.gate(ctx); err != nil {
		return false, err
	}
	return s.Store.Delete(ctx, key)
}

func (s *frozen) NumKeys(ctx context.Context) (int, error) {
	if err := s.gate(ctx); err != nil {
		return 0, err
	}
	return s.Store.NumKeys(ctx)
}

// TestGivingUpOnce: with a store that is stopped an attempt takes a second more than its time, however many of its steps give it up.
func TestGivingUpOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := attempts(t, 3)[0]
		s := &frozen{Store: a.p.Store}
		place, err := assemble.Take(t.Context(), s, "frozen", 0, 3, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.p.Store, a.Place = s, place
		a.Failure = newFailure(a.p, place, true)
		s.now.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		limited, stop := a.connecting(ctx)
		<-limited.Done()
		late := cohort.Ended(limited, "native: connect")
		_ = a.explain(ctx, late, stop())
		a.abandon(ctx)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v with a second of time", took)
		}
	})
}

// TestCancelledElsewhere: rank 0 was cancelled, which ends a group that is made. Rank 1 sees that rank 0 is gone, and
// reports which rank abandoned the group: none was cancelled here.
func TestCancelledElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := attempts(t, 2)
		for _, a := range all {
			a.Failure.forming.Store(false)
		}
		if err := all[0].Failure.Judge(&cohort.Error{Op: "group: barrier", Code: cohort.Canceled, Rank: cohort.NoRank}); !errors.Is(
			err, cohort.Canceled) {
			t.Errorf("rank 0 says %v", err)
		}
		lost := cohort.New("native: read", cohort.PeerLost, "the rank has closed its end")
		lost.Rank = 0
		if err := all[1].Failure.Judge(lost); !errors.Is(err, cohort.Aborted) || errors.Is(err, cohort.Canceled) || rankOf(err) != 0 {
			t.Errorf("rank 1 says %v", err)
		}
	})
}

// TestWhyEnded: of the end of the context and the reason for which the connecting was ended, the first counts, whatever
// has followed when it is looked at.
func TestWhyEnded(t *testing.T) {
	t.Parallel()
	lost := &cohort.Error{Op: "group: new", Code: cohort.DeadlineExceeded, Rank: 3, Err: context.DeadlineExceeded}
	above := cohort.New("job", cohort.Aborted, "it was ended")
	for name, c := range map[string]struct {
		first, then func(end, lose context.CancelCauseFunc)
		code        cohort.Code
		rank        cohort.Rank
	}{
		"lost": {first: func(_, lose context.CancelCauseFunc) { lose(lost) }, code: cohort.DeadlineExceeded, rank: 3},
		"lost, then ended": {
			first: func(_, lose context.CancelCauseFunc) { lose(lost) },
			then:  func(end, _ context.CancelCauseFunc) { end(nil) }, code: cohort.DeadlineExceeded, rank: 3,
		},
		"lost, then caused": {
			first: func(_, lose context.CancelCauseFunc) { lose(lost) },
			then:  func(end, _ context.CancelCauseFunc) { end(above) }, code: cohort.DeadlineExceeded, rank: 3,
		},
		"ended": {
			first: func(end, _ context.CancelCauseFunc) { end(nil) },
			then:  func(_, lose context.CancelCauseFunc) { lose(lost) }, code: cohort.Canceled, rank: 1,
		},
		"caused": {
			first: func(end, _ context.CancelCauseFunc) { end(above) },
			then:  func(_, lose context.CancelCauseFunc) { lose(lost) }, code: cohort.Canceled, rank: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			connecting, lose := context.WithCancelCause(ctx)
			defer lose(nil)
			c.first(end, lose)
			store := cohort.FromContext(connecting, "get") // what the store says that was asked with the context
			if c.then != nil {
				c.then(end, lose)
			}
			err := endReason(ctx, connecting, &cohort.Error{Op: "gloo: wait", Code: cohort.CodeOf(store), Rank: 1, Err: store})
			if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != c.code || e.Rank != c.rank {
				t.Errorf("%v", err)
			}
		})
	}
}
