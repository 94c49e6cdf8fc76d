// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/store"
)

// mortal is a store whose user dies: after some operations every other one fails and does nothing.
type mortal struct {
	store.Store
	left int // negative: it lives
}

var errKilled = errors.New("killed")

func (m *mortal) dies() bool {
	if m.left > 0 {
		m.left--
	}
	return m.left == 0
}

func (m *mortal) Set(ctx context.Context, key string, value []byte) error {
	if m.dies() {
		return errKilled
	}
	return m.Store.Set(ctx, key, value)
}

func (m *mortal) Get(ctx context.Context, key string) ([]byte, error) {
	if m.dies() {
		return nil, errKilled
	}
	return m.Store.Get(ctx, key)
}

func (m *mortal) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if m.dies() {
		return 0, errKilled
	}
	return m.Store.Add(ctx, key, delta)
}

func (m *mortal) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if m.dies() {
		return nil, errKilled
	}
	return m.Store.CompareAndSet(ctx, key, expected, desired)
}

func (m *mortal) Check(ctx context.Context, keys ...string) (bool, error) {
	if m.dies() {
		return false, errKilled
	}
	return m.Store.Check(ctx, keys...)
}

func (m *mortal) Delete(ctx context.Context, key string) (bool, error) {
	if m.dies() {
		return false, errKilled
	}
	return m.Store.Delete(ctx, key)
}

// troupe are members that need no sockets: they note who has come to which round.
type troupe struct {
	mu     sync.Mutex
	rounds map[int64]string // the list of handles
	there  map[int64]map[string]bool
	whole  []int64 // rounds in which all have trained
	failed bool    // one member has failed once
}

// come is a member that comes to a round. It reports whether all members came within a while.
func (p *troupe) come(m *elastic.Member, r elastic.Round, handle string) (bool, error) {
	p.mu.Lock()
	list := strings.Join(r.Handles, " ")
	if before, known := p.rounds[r.UUID]; known && before != list {
		p.mu.Unlock()
		return false, fmt.Errorf("uuid %d has the lists %q and %q", r.UUID, before, list)
	}
	p.rounds[r.UUID] = list
	if p.there[r.UUID] == nil {
		p.there[r.UUID] = map[string]bool{}
	}
	p.there[r.UUID][handle] = true
	p.mu.Unlock()
	if !slices.Contains(r.Handles, handle) {
		return false, fmt.Errorf("%v is not in its round %v", m, r)
	}
	for range 20 {
		p.mu.Lock()
		all := len(p.there[r.UUID]) == len(r.Handles)
		if all && !slices.Contains(p.whole, r.UUID) {
			p.whole = append(p.whole, r.UUID)
		}
		p.mu.Unlock()
		if all {
			return true, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false, nil
}

// play is the life of a member: it trains for three seconds in one round.
func (p *troupe) play(ctx context.Context, s store.Store) (trained bool, err error) {
	m, err := elastic.Join(ctx, s, silence)
	if err != nil {
		return false, err
	}
	defer func() { _ = m.Close() }()
	handle := m.String()
	for {
		r, err := m.Next(ctx, handle)
		if err != nil {
			return false, err
		}
		whole, err := p.come(m, r, handle)
		if err != nil {
			return false, err
		}
		if whole { // as a group's
			handle = fmt.Sprint(m, " of ", r.UUID)
		}
		over := !whole
		for tick := 0; tick < 30 && !over; tick++ {
			time.Sleep(100 * time.Millisecond)
			if over, err = m.Over(ctx); err != nil {
				return false, err
			}
			p.mu.Lock()
			if tick == 10 && !p.failed { // its group has failed, and the others have to find out
				p.failed, over = true, true
			}
			p.mu.Unlock()
		}
		if !over {
			return true, m.Done(ctx)
		}
	}
}

// perform runs a job of two to two members and a spare, whose coordinator dies after some operations and is started again.
// It reports whether it has died.
func (p *troupe) perform(t *testing.T, operations int) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	var wg sync.WaitGroup
	died := false
	wg.Go(func() {
		c, _ := elastic.New(&mortal{s, operations}, 2, 2, options...)
		err := c.Run(ctx)
		if died = err != nil; !died {
			return
		}
		time.Sleep(time.Second)
		if c, err = elastic.New(s, 2, 2, options...); err == nil {
			err = c.Run(ctx)
		}
		if err != nil {
			t.Errorf("dead after %d operations: the second coordinator: %v", operations, err)
		}
	})
	trained := 0
	var ends []error
	for range 3 {
		wg.Go(func() {
			did, err := p.play(ctx, s)
			p.mu.Lock()
			defer p.mu.Unlock()
			if did {
				trained++
			}
			ends = append(ends, err)
		})
	}
	wg.Wait()
	bad := slices.ContainsFunc(ends, func(err error) bool { return err != nil && !errors.Is(err, cohort.Closed) })
	if bad || trained != 2 {
		t.Errorf("dead after %d operations: %d trained to the end; %v", operations, trained, ends)
	}
	// The first group of two, and the one after its failure. The end of a coordinator forms none.
	if len(p.whole) != 2 {
		t.Errorf("dead after %d operations: the groups were %v of %v", operations, p.whole, slices.Collect(maps.Values(p.rounds)))
	}
	if n, _ := s.NumKeys(ctx); n > 40 {
		t.Errorf("dead after %d operations: %d keys are left", operations, n)
	}
	return died
}

// TestCoordinatorDiesAnywhere kills the coordinator after each of its operations on the store, and starts it again: the job
// ends as it would have, in the same number of groups.
func TestCoordinatorDiesAnywhere(t *testing.T) {
	t.Parallel()
	for operations := 1; ; operations++ {
		died := false
		synctest.Test(t, func(t *testing.T) {
			p := &troupe{rounds: map[int64]string{}, there: map[int64]map[string]bool{}}
			died = p.perform(t, operations)
		})
		if !died || t.Failed() {
			t.Logf("%d moments", operations)
			return
		}
	}
}

// TestTwoCoordinators: of two that run at a time the earlier one ends and decides nothing any more.
func TestTwoCoordinators(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		defer cancel()
		ends := make([]error, 2)
		var wg sync.WaitGroup
		for i := range ends {
			c, err := elastic.New(s, 1, 1, options...)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { ends[i] = c.Run(ctx) })
			time.Sleep(time.Second)
		}
		cancel()
		wg.Wait()
		if !errors.Is(ends[0], cohort.Aborted) || !strings.Contains(ends[0].Error(), "another coordinator") ||
			!errors.Is(ends[1], context.Canceled) {
			t.Errorf("%v", ends)
		}
	})
}

// TestLost: a member whose process has died is left out at once, if the process that started it reports that.
func TestLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		never := elastic.WithSilence(30 * time.Minute)
		c, err := elastic.New(s, 1, 1, never)
		if err != nil {
			t.Fatal(err)
		}
		first, err := c.Reserve(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = c.Run(ctx) })
		var members []*elastic.Member
		for i := range elastic.ID(2) {
			m, joinErr := elastic.Join(ctx, s, never, elastic.WithID(first+i))
			if joinErr != nil || m.ID() != first+i {
				t.Fatal(m, joinErr)
			}
			members = append(members, m)
		}
		if _, err = members[0].Next(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		wg.Go(func() {
			time.Sleep(time.Second) // the spare waits by then
			c.Lost(first)
		})
		if r, err := members[1].Next(ctx, "b"); err != nil || !slices.Equal(r.Handles, []string{"b"}) || time.Since(began) > 2*time.Second {
			t.Errorf("%v, %v after %v", r, err, time.Since(began))
		}
		cancel()
		for _, m := range members {
			_ = m.Close()
		}
		wg.Wait()
	})
}
