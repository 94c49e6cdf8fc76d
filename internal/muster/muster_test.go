// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package muster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// attempt is what a rank does to form a group: it returns the generation that was made and what the ranks said.
func attempt(ctx context.Context, s store.Store, rank, size int, words string) (*Place, string, error) {
	for {
		p, said, err := once(ctx, s, rank, size, words)
		if !errors.Is(err, ErrOver) || ctx.Err() != nil {
			return p, said, err
		}
	}
}

func once(ctx context.Context, s store.Store, rank, size int, words string) (p *Place, said string, err error) {
	p, err = Take(ctx, s, "g", rank, size, []byte(words), "extra")
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			p.GiveUp(ctx, time.Second)
		}
	}()
	all := make([]int, size)
	for r := range size {
		all[r] = r
		if _, err = p.Await(ctx, r); err != nil {
			return p, "", err
		}
	}
	values, err := p.Words(ctx, all...)
	if err != nil {
		return p, "", err
	}
	return p, string(bytes.Join(values, []byte(" "))), p.Connected(ctx)
}

// TestSuspects: when a generation is over, those who give it up as soon as they see that are not what the others waited for. Of several
// that do not, those that never said a word are.
func TestSuspects(t *testing.T) {
	const never = time.Hour
	for name, c := range map[string]struct {
		waits  []int                 // they said that they wait
		giveUp map[int]time.Duration // when they say that they have given up
		want   []int
	}{
		"one is stopped":                         {giveUp: map[int]time.Duration{0: 0, 2: 30 * time.Millisecond}, want: []int{3}},
		"one is stopped after it has waited":     {waits: []int{0, 3}, giveUp: map[int]time.Duration{0: 0, 2: 30 * time.Millisecond}, want: []int{3}},
		"all live":                               {giveUp: map[int]time.Duration{0: 0, 2: 35 * time.Millisecond, 3: 35 * time.Millisecond}},
		"two are stopped":                        {giveUp: map[int]time.Duration{0: 0}, want: []int{2, 3}},
		"one of two did wait":                    {waits: []int{0, 2}, giveUp: map[int]time.Duration{0: 0, 2: never}, want: []int{3}},
		"two are stopped after they have waited": {waits: []int{2, 3}, giveUp: map[int]time.Duration{0: 0}, want: []int{2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := store.NewMemory()
				defer func() { _ = s.Close() }()
				places := make([]*Place, 4)
				for r := range places {
					var err error
					if places[r], err = Take(t.Context(), s, "g", r, len(places), nil); err != nil {
						t.Fatal(err)
					}
				}
				for _, r := range c.waits {
					if err := places[r].Waits(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				for r, after := range c.giveUp {
					if after != never {
						time.AfterFunc(after, func() { places[r].GiveUp(t.Context(), time.Second) })
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				synctest.Wait()
				if got, known := places[1].Suspects(ctx); !known || !slices.Equal(got, c.want) {
					t.Errorf("suspects %v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestAgainAndAgain(t *testing.T) {
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	const size = 3
	keys := -1
	for round := range 20 {
		places := make([]*Place, size)
		var wg sync.WaitGroup
		for r := range size {
			wg.Go(func() {
				p, said, err := attempt(t.Context(), s, r, size, fmt.Sprintf("%d.%d", round, r))
				if want := fmt.Sprintf("%d.0 %d.1 %d.2", round, round, round); err != nil || said != want {
					t.Errorf("round %d, rank %d: %q, %v", round, r, said, err)
				}
				places[r] = p
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		for r, p := range places {
			if round%2 == 0 || r > 0 { // in every other round rank 0 does not say that it leaves
				p.Leave(t.Context(), p.size)
			}
		}
		if n, err := s.NumKeys(t.Context()); err != nil || round == 1 {
			keys = n
		} else if round > 1 && n > keys+1 {
			t.Fatalf("round %d: %d keys, after the second round there were %d", round, n, keys)
		}
	}
}

func TestLastRankTidiesUp(t *testing.T) {
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	p, _, err := attempt(t.Context(), s, 0, 1, "x")
	if err != nil {
		t.Fatal(err)
	}
	p.Leave(t.Context(), p.size)
	keys, err := store.ListKeys(t.Context(), s)
	if text := strings.Join(keys, " "); err != nil || len(keys) != 2 {
		t.Errorf("left in the store: %s, %v", text, err)
	}
}

// TestSimulation: ranks that come, give up, die at any operation on the store and are replaced. What is made must be made of
// one process per rank, the same on all of them; when the trouble is over, everybody gets a group.
func TestSimulation(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { simulate(t, seed) }) })
		if t.Failed() {
			return
		}
	}
}

// mortal is a store whose user dies at a chosen operation: that one and all later ones do nothing.
type mortal struct {
	store.Store
	left int
}

func (m *mortal) step(ctx context.Context) error {
	if m.left--; m.left > 0 {
		return nil
	}
	<-ctx.Done()
	return errors.New("dead")
}

func (m *mortal) Add(ctx context.Context, key string, d int64) (int64, error) {
	if err := m.step(ctx); err != nil {
		return 0, err
	}
	return m.Store.Add(ctx, key, d)
}

func (m *mortal) CompareAndSet(ctx context.Context, key string, a, b []byte) ([]byte, error) {
	if err := m.step(ctx); err != nil {
		return nil, err
	}
	return m.Store.CompareAndSet(ctx, key, a, b)
}

func (m *mortal) Get(ctx context.Context, key string) ([]byte, error) {
	if err := m.step(ctx); err != nil {
		return nil, err
	}
	return m.Store.Get(ctx, key)
}

func (m *mortal) Check(ctx context.Context, keys ...string) (bool, error) {
	if err := m.step(ctx); err != nil {
		return false, err
	}
	return m.Store.Check(ctx, keys...)
}

func (m *mortal) Wait(ctx context.Context, keys ...string) error {
	if err := m.step(ctx); err != nil {
		return err
	}
	return m.Store.Wait(ctx, keys...)
}

func simulate(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	size := 2 + random.IntN(3)
	var mu sync.Mutex
	agreed := map[int64]string{}
	var wg sync.WaitGroup
	for r := range size {
		type life struct {
			dies, gives int // at which operation it dies; after how many milliseconds it gives up
			pause       int
		}
		lives := make([]life, random.IntN(4))
		for i := range lives {
			lives[i] = life{dies: random.IntN(30), gives: random.IntN(40), pause: random.IntN(20)}
		}
		begin := random.IntN(30)
		wg.Go(func() {
			time.Sleep(time.Duration(begin) * time.Millisecond)
			for i := 0; ; i++ {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				use := store.Store(s)
				last := i >= len(lives)
				if !last {
					if l := lives[i]; l.gives%2 == 0 {
						ctx, cancel = context.WithTimeout(t.Context(), time.Duration(l.gives)*time.Millisecond)
					} else if l.dies > 0 {
						use = &mortal{Store: s, left: l.dies}
						ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond) // the end of the dead
					}
				}
				words := fmt.Sprintf("%d.%d", r, i)
				if last {
					words = "last"
				}
				p, said, err := attempt(ctx, use, r, size, words)
				cancel()
				if err == nil {
					mu.Lock()
					if before := agreed[p.generation]; before != "" && before != said {
						t.Errorf("generation %d: %q and %q", p.generation, before, said)
					}
					agreed[p.generation] = said
					mu.Unlock()
				}
				if !last {
					time.Sleep(time.Duration(lives[i].pause) * time.Millisecond)
					continue
				}
				// A group with a life of another rank that has ended since is no good: again. With the last ones it must come.
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
				if err != nil || strings.Count(said, "last") == size {
					return
				}
			}
		})
	}
	wg.Wait()
}
