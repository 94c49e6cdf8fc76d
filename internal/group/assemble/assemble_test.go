// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package assemble

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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/seeds"
	"github.com/cohort-dist/cohort/store"
)

// attempt is what a rank does to form a group: it returns the generation that was made and what the ranks said.
func attempt(ctx context.Context, s store.Store, rank, size int, words string) (*Place, string, error) {
	for {
		p, said, err := once(ctx, s, rank, size, words)
		if !errors.Is(err, ErrAttemptAbandoned) || ctx.Err() != nil {
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
			_ = p.GiveUp(ctx)
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

// asked counts the requests to a store.
type asked struct {
	*store.Memory
	n atomic.Int64
}

func (a *asked) Get(ctx context.Context, key string) ([]byte, error) {
	a.n.Add(1)
	return a.Memory.Get(ctx, key)
}

func (a *asked) Set(ctx context.Context, key string, value []byte) error {
	a.n.Add(1)
	return a.Memory.Set(ctx, key, value)
}

func (a *asked) Add(ctx context.Context, key string, delta int64) (int64, error) {
	a.n.Add(1)
	return a.Memory.Add(ctx, key, delta)
}

func (a *asked) CompareAndSet(ctx context.Context, key string, old, value []byte) ([]byte, error) {
	a.n.Add(1)
	return a.Memory.CompareAndSet(ctx, key, old, value)
}

func (a *asked) Append(ctx context.Context, key string, value []byte) error {
	a.n.Add(1)
	return a.Memory.Append(ctx, key, value)
}

func (a *asked) Check(ctx context.Context, keys ...string) (bool, error) {
	a.n.Add(1)
	return a.Memory.Check(ctx, keys...)
}

func (a *asked) Wait(ctx context.Context, keys ...string) error {
	a.n.Add(1)
	return a.Memory.Wait(ctx, keys...)
}

func (a *asked) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	a.n.Add(1)
	return a.Memory.MultiGet(ctx, keys...)
}

// takeAll takes all places of a generation.
func takeAll(t *testing.T, s store.Store, size int) []*Place {
	t.Helper()
	places := make([]*Place, size)
	for r := range places {
		var err error
		if places[r], err = Take(t.Context(), s, "g", r, size, nil); err != nil {
			t.Fatal(err)
		}
	}
	return places
}

// TestSuspects: when a generation is over, those who give it up as soon as they see that are not what the others waited for.
func TestSuspects(t *testing.T) {
	for name, c := range map[string]struct {
		giveUp map[int]time.Duration // when they say that they have given up
		want   []int
		within time.Duration
	}{
		"one is stopped":                  {map[int]time.Duration{0: 0, 2: 30 * time.Millisecond}, []int{3}, 400 * time.Millisecond},
		"one is stopped, another is slow": {map[int]time.Duration{0: 0, 2: 800 * time.Millisecond}, []int{3}, 1200 * time.Millisecond},
		"all live": {
			map[int]time.Duration{0: 0, 2: 35 * time.Millisecond, 3: 35 * time.Millisecond},
			nil,
			100 * time.Millisecond,
		},
		"the last one is slow": {map[int]time.Duration{0: 0, 2: 0, 3: 150 * time.Millisecond}, nil, 200 * time.Millisecond},
		"two are stopped":      {map[int]time.Duration{0: 0}, []int{2, 3}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := store.NewMemory()
				defer func() { _ = s.Close() }()
				places := takeAll(t, s, 4)
				var wg sync.WaitGroup
				for r, after := range c.giveUp {
					wg.Go(func() {
						time.Sleep(after)
						_ = places[r].GiveUp(t.Context())
						_, _ = places[r].Suspects(t.Context())
					})
				}
				began := time.Now()
				_ = places[1].GiveUp(t.Context())
				if got, known := places[1].Suspects(t.Context()); !known || !slices.Equal(got, c.want) || time.Since(began) > c.within {
					t.Errorf("suspects %v after %v, want %v", got, time.Since(began), c.want)
				}
				wg.Wait()
			})
		})
	}
}

// TestSuspectsAskLittle: a thousand ranks find out at the same time who of them is stopped. None of them asks the store more often than in
// a small group, and none twice when it gives up twice.
func TestSuspectsAskLittle(t *testing.T) {
	const size, most = 1000, 12
	synctest.Test(t, func(t *testing.T) {
		s := &asked{Memory: store.NewMemory()}
		defer func() { _ = s.Close() }()
		places := takeAll(t, s, size)
		s.n.Store(0)
		var wg sync.WaitGroup
		for _, p := range places[1:] {
			wg.Go(func() {
				_ = p.GiveUp(t.Context())
				_ = p.GiveUp(t.Context())
				if got, known := p.Suspects(t.Context()); !known || !slices.Equal(got, []int{0}) {
					t.Errorf("suspects %v", got)
				}
			})
		}
		wg.Wait()
		if n := s.n.Load(); n > most*size {
			t.Errorf("%d requests for %d ranks", n, size)
		}
		s.n.Store(0)
		if missing, err := places[1].Missing(t.Context()); err != nil || len(missing) > 0 || s.n.Load() > most {
			t.Errorf("missing %v, %v, with %d requests", missing, err, s.n.Load())
		}
	})
}

// TestMissing: it is found out who is missing, before and after the generation is over, with few questions if few are.
func TestMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &asked{Memory: store.NewMemory()}
		defer func() { _ = s.Close() }()
		const size = 1000
		var p *Place
		want := []int{3, 500, 999}
		for r := range size {
			if slices.Contains(want, r) {
				continue
			}
			var err error
			if p, err = Take(t.Context(), s, "g", r, size, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, closed := range []bool{false, true} {
			s.n.Store(0)
			if got, err := p.Missing(t.Context()); err != nil || !slices.Equal(got, want) || s.n.Load() > 100 {
				t.Errorf("closed %v: missing %v, %v, with %d requests", closed, got, err, s.n.Load())
			}
			if err := p.GiveUp(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
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

// TestGivenUpGenerationsAreForgotten: however many attempts were given up before a group is made, they leave no more in the store than one.
func TestGivenUpGenerationsAreForgotten(t *testing.T) {
	const size = 3
	left := map[int]int{} // by the number of attempts
	for _, attempts := range []int{1, 2, 6} {
		s := store.NewMemory()
		defer func() { _ = s.Close() }()
		for range attempts {
			for _, p := range takeAll(t, s, size) {
				if err := p.GiveUp(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		var wg sync.WaitGroup
		for _, p := range takeAll(t, s, size) {
			wg.Go(func() {
				if err := p.Connected(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		keys, err := store.ListKeys(t.Context(), s)
		if left[attempts] = len(keys); err != nil || left[attempts] != left[1] {
			t.Errorf("%d keys after %d attempts, %d after one: %s, %v", left[attempts], attempts, left[1], strings.Join(keys, " "), err)
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
	for seed := range seeds.Range(300) {
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
				// A group with a life of another rank that has ended since does not count: again. With the last ones it must come.
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

// TestUpAfterTheEnd: a rank that has connected says so though its context has just ended: its door closes, and the
// others would declare it dead.
func TestUpAfterTheEnd(t *testing.T) {
	t.Parallel()
	places := takeAll(t, store.NewMemory(), 2)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := places[1].MarkConnected(ended); err != nil {
		t.Error(err)
	}
	if departed, err := places[0].LeftOnPurpose(t.Context(), 1); !departed || err != nil {
		t.Errorf("departed %v, %v", departed, err)
	}
}
