// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(name string, rank, size int) Config {
	return Config{
		Name: name, Rank: rank, Size: size, Round: -1, Cohort: true, Logger: slog.New(slog.DiscardHandler),
		Entry: Entry{Epoch: uint64(rank + 100), Secret: []byte(name)},
	}
}

// fakes are the workers of a dynamic world without a network.
type fakes struct {
	mu    sync.Mutex
	alive map[string]bool
	knows map[string][]string // whom a worker knows
	hang  map[string]bool     // answers nothing
	cut   map[string]bool     // loses the connection of the next call
}

func newFakes() *fakes {
	return &fakes{alive: map[string]bool{}, knows: map[string][]string{}, hang: map[string]bool{}, cut: map[string]bool{}}
}

// fake is one of them, as a Caller.
type fake struct {
	all  *fakes
	name string
}

func (f fake) Listen(_ context.Context, _ int) (string, error) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.all.alive[f.name] = true
	return "host of " + f.name, nil
}

func (f fake) Add(w Worker, _ string, _ Entry) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.all.knows[f.name] = append(f.all.knows[f.name], w.Name)
}

func (f fake) Drop(name string) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.all.knows[f.name] = slices.DeleteFunc(f.all.knows[f.name], func(x string) bool { return x == name })
}

// call reaches a worker or says why not.
func (f fake) call(ctx context.Context, name string) error {
	f.all.mu.Lock()
	alive, hangs, cut := f.all.alive[name], f.all.hang[name], f.all.cut[name]
	delete(f.all.cut, name)
	f.all.mu.Unlock()
	if cut {
		return cohort.New("fake", cohort.PeerLost, "connection reset by peer")
	}
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if !alive {
		return fmt.Errorf("call %s: %w", name, ErrRefused)
	}
	return ctx.Err()
}

func (f fake) AskDevices(ctx context.Context, name string) error { return f.call(ctx, name) }

func (f fake) Announce(ctx context.Context, name string, comes bool) error {
	if err := f.call(ctx, name); err != nil {
		return err
	}
	fake{f.all, name}.Drop(f.name)
	if comes {
		fake{f.all, name}.Add(Worker{Name: f.name}, "", Entry{})
	}
	return nil
}

// Probe finds a worker by its address, which is its name here.
func (f fake) Probe(ctx context.Context, addr string) error {
	return f.call(ctx, strings.TrimPrefix(addr, "uv://host of "))
}

func (f fake) Reach(ctx context.Context, name string) error { return f.call(ctx, name) }

// listed returns the members as the store has them.
func listed(t *testing.T, st store.Store, round int) []string {
	t.Helper()
	all, err := members(context.Background(), store.Prefix(RoundPrefix(round), st))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names
}

func join(ctx context.Context, st store.Store, all *fakes, name string) (*World, error) {
	w := New(st, config(name, -1, 0))
	return w, w.Join(ctx, fake{all, name})
}

// A join whose time is over, because a member does not answer, leaves the world as it was: the next one succeeds.
func TestJoinThatTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, all := store.NewMemory(), newFakes()
		for _, name := range []string{"a", "b"} {
			if _, err := join(t.Context(), st, all, name); err != nil {
				t.Fatal(err)
			}
		}
		all.hang["b"] = true
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := join(ctx, st, all, "c"); err == nil {
			t.Fatal("joined although a member does not answer")
		}
		if got := listed(t, st, 0); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("afterwards the list is %v", got)
		}
		if got := all.knows["a"]; !slices.Equal(got, []string{"b"}) {
			t.Errorf("afterwards a knows %v", got)
		}
		all.hang["b"] = false
		if _, err := join(t.Context(), st, all, "d"); err != nil {
			t.Fatal(err)
		}
		if got := listed(t, st, 0); !slices.Equal(got, []string{"a", "b", "d"}) {
			t.Errorf("the list is %v", got)
		}
	})
}

// A leave whose time is over takes the worker off the list and gives the token back.
func TestLeaveThatTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, all := store.NewMemory(), newFakes()
		a, err := join(t.Context(), st, all, "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = join(t.Context(), st, all, "b"); err != nil {
			t.Fatal(err)
		}
		all.hang["b"] = true
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := a.Leave(ctx, fake{all, "a"}, func() []string { return []string{"b"} }); err == nil {
			t.Error("left in order although a member does not answer")
		}
		all.hang["b"] = false
		if got := listed(t, st, 0); !slices.Equal(got, []string{"b"}) {
			t.Errorf("the list is %v", got)
		}
		if _, err := join(t.Context(), st, all, "c"); err != nil {
			t.Error(err)
		}
	})
}

// A member dies while a worker joins and calls it: the connection ends, and says no more than that. The join goes on without the member
// if it is dead, and fails if it lives and may not know the newcomer.
func TestJoinDuringCrash(t *testing.T) {
	for name, c := range map[string]struct {
		alive bool
		want  []string
	}{"dead": {false, []string{"a", "c", "d"}}, "alive": {true, []string{"a", "b", "c"}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, all := store.NewMemory(), newFakes()
				for _, name := range []string{"a", "b", "c"} {
					if _, err := join(t.Context(), st, all, name); err != nil {
						t.Fatal(err)
					}
				}
				all.alive["b"], all.cut["b"] = c.alive, true
				if _, err := join(t.Context(), st, all, "d"); (err != nil) != c.alive {
					t.Error(err)
				}
				if got := listed(t, st, 0); !slices.Equal(got, c.want) {
					t.Errorf("the list is %v, want %v", got, c.want)
				}
			})
		})
	}
}

// After a crash of a member the next worker that joins takes it off the list.
func TestJoinAfterCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, all := store.NewMemory(), newFakes()
		for _, name := range []string{"a", "b", "c"} {
			if _, err := join(t.Context(), st, all, name); err != nil {
				t.Fatal(err)
			}
		}
		delete(all.alive, "b")
		for _, name := range []string{"d", "e"} {
			if _, err := join(t.Context(), st, all, name); err != nil {
				t.Fatal(err)
			}
		}
		if got := listed(t, st, 0); !slices.Equal(got, []string{"a", "c", "d", "e"}) {
			t.Errorf("the list is %v", got)
		}
		if got := all.knows["e"]; !slices.Equal(got, []string{"a", "c", "d"}) {
			t.Errorf("e knows %v", got)
		}
	})
}

// A Go worker that dies while it has the token stops the others for some seconds only, and is taken off the list.
func TestTokenOfTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, all := store.NewMemory(), newFakes()
		if _, err := join(t.Context(), st, all, "a"); err != nil {
			t.Fatal(err)
		}
		round := store.Prefix(RoundPrefix(0), st)
		const held = "Token_for_dead_join"
		for key, value := range map[string]string{
			"RpcGroupManagementToken": held, keyInfos: "a-0,dead-1,",
			keyAddrs + "dead": "uv://host:1",
		} {
			if err := round.Set(t.Context(), key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		const lives = 30 * time.Second
		go func() { // it lives that long, then it dies
			for n := range int(lives / time.Second) {
				_ = round.Set(context.Background(), "cohort/beat/"+held, []byte(strconv.Itoa(n)))
				time.Sleep(time.Second)
			}
		}()
		begun := time.Now()
		if _, err := join(t.Context(), st, all, "b"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begun); waited < lives || waited > lives+20*time.Second {
			t.Errorf("the token was taken after %v", waited)
		}
		if got := listed(t, st, 0); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("the list is %v", got)
		}
	})
}

// crossed is a store in which another worker changes the list between a look at it and the first change of it.
type crossed struct {
	store.Store
	once sync.Once
}

func (c *crossed) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if key == RoundPrefix(0)+"/"+keyInfos {
		c.once.Do(func() { _ = c.Set(ctx, key, []byte("a-0,late-7,")) })
	}
	return c.Store.CompareAndSet(ctx, key, expected, desired)
}

// A worker that has lost the token without knowing it does not write over what others have written since.
func TestListIsNotOverwritten(t *testing.T) {
	st, all := store.NewMemory(), newFakes()
	for _, name := range []string{"a", "late"} {
		if _, err := (fake{all, name}).Listen(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := store.Prefix(RoundPrefix(0), st).Set(t.Context(), keyAddrs+name, []byte("uv://host:0")); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Prefix(RoundPrefix(0), st).Set(t.Context(), keyInfos, []byte("a-0,")); err != nil {
		t.Fatal(err)
	}
	if _, err := join(t.Context(), &crossed{Store: st}, all, "b"); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, st, 0); !slices.Equal(got, []string{"a", "late", "b"}) {
		t.Errorf("the list is %v", got)
	}
}

// A PyTorch worker that holds the token says nothing about itself: it is waited for, and the error says whom for.
func TestTokenOfPyTorch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, all := store.NewMemory(), newFakes()
		round := store.Prefix(RoundPrefix(0), st)
		if err := round.Set(t.Context(), "RpcGroupManagementToken", []byte("Token_for_py_join")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := join(ctx, st, all, "a"); cohort.CodeOf(err) != cohort.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		time.AfterFunc(time.Second, func() {
			_ = round.Set(t.Context(), "RpcGroupManagementToken", nil)
			_ = round.Set(t.Context(), "Token_for_py_join", []byte("Done"))
		})
		if _, err := join(t.Context(), st, all, "b"); err != nil {
			t.Error(err)
		}
	})
}

// A dynamic world is found in whichever round it is, and the round after many static worlds too.
func TestManyRounds(t *testing.T) {
	st, all := store.NewMemory(), newFakes()
	ctx := t.Context()
	for k := range 40 { // worlds of PyTorch alone leave no hint
		round := store.Prefix(RoundPrefix(k), st)
		if err := errors.Join(round.Set(ctx, keyStatic, []byte("true")), round.Set(ctx, keyOver, nil)); err != nil {
			t.Fatal(err)
		}
	}
	a, err := join(ctx, st, all, "a")
	if err != nil || a.Round() != 40 {
		t.Fatalf("round %d, %v", a.Round(), err)
	}
	b, err := join(ctx, st, all, "b")
	if err != nil || b.Round() != 40 {
		t.Fatalf("round %d, %v", b.Round(), err)
	}
	if k, err := New(st, config("guest", -1, 0)).LatestRound(ctx); err != nil || k != 40 {
		t.Errorf("a guest looks at round %d, %v", k, err)
	}
}

// counting counts the operations of a store.
type counting struct {
	store.Store
	mu sync.Mutex
	n  map[string]int
}

func (c *counting) count(op string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[op]++
}

func (c *counting) Check(ctx context.Context, keys ...string) (bool, error) {
	c.count("check")
	return c.Store.Check(ctx, keys...)
}

func (c *counting) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n["check"]
}

// Go ranks wait in the store: the questions that they ask while one is late do not grow with the square of their number.
func TestWaitingIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, late = 32, 60 * time.Second
		st := &counting{Store: store.NewMemory(), n: map[string]int{}}
		var work sync.WaitGroup
		come := func(rank int) {
			w := New(st, config("w"+strconv.Itoa(rank), rank, size))
			if err := w.ComeTogether(t.Context()); err != nil || w.Mixed() || w.Round() != 0 {
				t.Errorf("rank %d: %v, mixed %v, round %d", rank, err, w.Mixed(), w.Round())
			}
		}
		for rank := range size - 1 {
			work.Go(func() { come(rank) })
		}
		time.Sleep(late) // of the bubble
		asked := st.total()
		come(size - 1)
		work.Wait()
		// One rank looks for PyTorch ranks, ten times a second for those of this round, twice for those of sixteen others.
		if perSecond := asked / 60; perSecond > 400 {
			t.Errorf("%d questions a second", perSecond)
		}
	})
}

// All Go ranks find out that a rank is PyTorch, in their round or in a later one; also when the one that looks dies.
func TestComeTogetherWithPyTorch(t *testing.T) {
	for _, round := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			const size = 4
			st := store.NewMemory()
			var work sync.WaitGroup
			for rank := range size - 1 {
				work.Go(func() {
					ctx := t.Context()
					if rank == 0 { // comes first, looks, and dies
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, time.Second)
						defer cancel()
					} else {
						time.Sleep(10 * time.Millisecond)
					}
					w := New(st, config("w"+strconv.Itoa(rank), rank, size))
					err := w.ComeTogether(ctx)
					if rank == 0 {
						if err == nil {
							t.Error("the one that died has come together with others")
						}
						return
					}
					if err != nil || !w.Mixed() || w.Round() != round {
						t.Errorf("rank %d: %v, mixed %v, round %d", rank, err, w.Mixed(), w.Round())
					}
				})
			}
			time.Sleep(20 * time.Second)
			if err := store.Prefix(RoundPrefix(round), st).Set(t.Context(), "0/rank_3", []byte("address")); err != nil {
				t.Error(err)
			}
			work.Wait()
		})
	}
}

// A start that fails when some ranks have published their names does not spoil the next one: no rank stays in that round, neither a
// rank that has not got so far nor one that comes last.
func TestStartAfterNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 3
		st, all := store.NewMemory(), newFakes()
		start := func(ctx context.Context, rank, attempt int) (*World, error) {
			w := New(st, config("w"+strconv.Itoa(rank), rank, size))
			if rank == size-1 && attempt == 0 { // it dies
				return w, w.ComeTogether(ctx)
			}
			_, err := startStatic(ctx, w, all)
			return w, err
		}
		for attempt := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			var work sync.WaitGroup
			for rank := range size {
				work.Go(func() {
					if attempt > 0 {
						time.Sleep(time.Duration(size-rank) * time.Second) // whose name is missing comes first
					}
					w, err := start(ctx, rank, attempt)
					if failed := err != nil; w.Round() != attempt || failed != (attempt == 0 && rank != size-1) {
						t.Errorf("start %d of rank %d: round %d, %v", attempt, rank, w.Round(), err)
					}
				})
			}
			work.Wait()
			cancel()
		}
	})
}

// A start that waits in vain says who is missing.
func TestMissingRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := New(store.NewMemory(), config("w0", 0, 3)).ComeTogether(ctx)
		var e *cohort.Error
		if !errors.As(err, &e) || e.Code != cohort.DeadlineExceeded || e.Detail != "these ranks did not join: 1, 2" {
			t.Errorf("got %v", err)
		}
	})
}

func TestEntry(t *testing.T) {
	e := Entry{Epoch: 0xabc, Secret: []byte{1, 2, 0xff}}
	got, err := parseEntry("w", e.text())
	if err != nil || got.Epoch != e.Epoch || !slices.Equal(got.Secret, e.Secret) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", " ", "0 01", "zz 01", "1 0", "1 zz"} {
		if _, err := parseEntry("w", []byte(bad)); err == nil {
			t.Errorf("%q is taken for an entry", bad)
		}
	}
}
