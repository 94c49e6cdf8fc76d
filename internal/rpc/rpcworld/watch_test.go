// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// scene is what a watcher sees of the others.
type scene struct {
	mu     sync.Mutex
	states map[string]State
	reach  map[string]error
	asked  map[string]int
	all    []Worker
}

func newScene(names ...string) *scene {
	s := &scene{states: map[string]State{}, reach: map[string]error{}, asked: map[string]int{}}
	for i, name := range names {
		s.all = append(s.all, Worker{Name: name, ID: i})
		s.states[name] = State{Known: true, ID: i, Met: true, Connected: true}
	}
	return s
}

func (s *scene) change(name string, fn func(*State), reach error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.states[name]
	fn(&x)
	s.states[name], s.reach[name] = x, reach
}

func (s *scene) State(name string) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[name]
}

func (s *scene) Reach(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[name]++
	if err := s.reach[name]; err != nil {
		return fmt.Errorf("reach %s: %w", name, err)
	}
	return nil
}

func (s *scene) Workers() []Worker { return s.all }

// watch watches until a worker is dead, or a minute has passed.
func watch(t *testing.T, w *World, s *scene, how wait, names ...string) (*cohort.Error, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begun := time.Now()
	v := w.Watch(ctx, s, names, names, how)
	<-v.Context().Done()
	return v.End(), time.Since(begun)
}

func TestWatcher(t *testing.T) {
	lost := func(s *State) { s.Connected = false }
	for name, c := range map[string]struct {
		set  func(s *scene)
		how  wait
		dead string
		from time.Duration
		to   time.Duration
	}{
		"all is well":            {func(*scene) {}, closedWait, "", 0, 0},
		"a process has ended":    {func(s *scene) { s.change("b", lost, ErrRefused) }, closedWait, "b", 0, time.Second},
		"one that may have left": {func(s *scene) { s.change("b", lost, ErrRefused) }, openWait, "b", time.Second, 2 * time.Second},
		"a connection was cut":   {func(s *scene) { s.change("b", lost, nil) }, closedWait, "", 0, 0},
		"a machine is silent": {
			func(s *scene) { s.change("b", func(x *State) { x.Silence = 20 * time.Second }, nil) },
			closedWait, "b", 0, time.Second,
		},
		"a machine cannot be reached": {
			func(s *scene) { s.change("b", lost, ErrSilent) }, closedWait, "b", 10 * time.Second,
			20 * time.Second,
		},
		"a member has left": {
			func(s *scene) { s.change("b", func(x *State) { *x = State{} }, nil) }, closedWait, "b",
			0, time.Second,
		},
		"a worker that was never called": {func(s *scene) {
			s.change("b", func(x *State) { x.Met, x.Connected = false, false }, ErrRefused)
		}, closedWait, "b", 500 * time.Millisecond, 2 * time.Second},
		"a worker that is not awaited": {func(s *scene) { s.change("c", lost, ErrRefused) }, closedWait, "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene("a", "b", "c")
				c.set(s)
				w := New(store.NewMemory(), config("a", 0, 3))
				e, after := watch(t, w, s, c.how, "b")
				switch {
				case c.dead == "" && (e != nil || after < time.Minute):
					t.Errorf("%v is dead after %v", e, after)
				case c.dead != "" && (e == nil || e.Peer != c.dead || e.Code != cohort.PeerLost):
					t.Errorf("got %v after %v", e, after)
				case c.dead != "" && (after < c.from || after > c.to):
					t.Errorf("found after %v, want %v to %v", after, c.from, c.to)
				}
			})
		})
	}
}

// recordDeath notes the death of a worker as one that has noticed it does.
func recordDeath(t *testing.T, st store.Store, name string) {
	t.Helper()
	if err := store.Prefix(RoundPrefix(0), st).Set(context.Background(), keyLost, []byte(name)); err != nil {
		t.Error(err)
	}
}

// The first death that was recorded is the cause, even for a worker that has noticed another one.
func TestWatcherNamesTheFirstDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.NewMemory()
		s := newScene("a", "b", "c")
		recordDeath(t, st, "b")
		s.change("c", func(x *State) { x.Connected = false }, ErrRefused) // c ended because b died
		e, _ := watch(t, New(st, config("a", 0, 3)), s, closedWait, "b", "c")
		if e == nil || e.Peer != "b" || e.Rank != 1 {
			t.Errorf("got %v", e)
		}
	})
}

// What others have recorded ends a wait, too.
func TestWatcherLearnsOfADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.NewMemory()
		time.AfterFunc(3*time.Second, func() { recordDeath(t, st, "b") })
		e, after := watch(t, New(st, config("a", 0, 3)), newScene("a", "b", "c"), closedWait, "b")
		if e == nil || e.Peer != "b" || after > 5*time.Second {
			t.Errorf("got %v after %v", e, after)
		}
	})
}

// stuck is a store that does not answer a question.
type stuck struct{ store.Store }

func (s stuck) Check(ctx context.Context, _ ...string) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

func (s stuck) CompareAndSet(ctx context.Context, _ string, _, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A store that does not answer does not keep a death from being noticed.
func TestWatcherWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene("a", "b", "c")
		time.AfterFunc(5*time.Second, func() { s.change("b", func(x *State) { x.Connected = false }, ErrRefused) })
		e, after := watch(t, New(stuck{store.NewMemory()}, config("a", 0, 3)), s, closedWait, "b")
		if e == nil || e.Peer != "b" || after > 8*time.Second {
			t.Errorf("got %v after %v", e, after)
		}
	})
}

// TestWatcherLearnsThatOneGaveUp: a worker that abandoned its shutdown before it went is not declared dead. Its reason counts, unless
// that is a cancellation: what the others wait for was not canceled.
func TestWatcherLearnsThatOneGaveUp(t *testing.T) {
	for name, c := range map[string]struct {
		why  error
		code cohort.Code
	}{
		"deadline": {cohort.New("rpc: shutdown", cohort.DeadlineExceeded, "w2 did not report"), cohort.DeadlineExceeded},
		"cancel":   {cohort.New("rpc: shutdown", cohort.Canceled, "w2 did not report"), cohort.Aborted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := store.NewMemory()
				s := newScene("a", "b", "c")
				expired, cancel := context.WithCancel(t.Context())
				cancel()
				New(st, config("b", 1, 3)).GaveUp(expired, s, c.why)
				s.change("b", func(x *State) { x.Connected = false }, ErrRefused)
				e, after := watch(t, New(st, config("a", 0, 3)), s, closedWait, "b", "c")
				if e == nil || e.Peer != "b" || e.Rank != 1 || e.Code != c.code ||
					!strings.Contains(e.Detail, "abandoned its shutdown: ") || !strings.Contains(e.Detail, "w2 did not report") ||
					after > time.Second {
					t.Errorf("got %v after %v", e, after)
				}
			})
		})
	}
}

// TestWatcherLearnsWhoseDeathOneFound: b gives up its shutdown because c has died, which it alone has found. The others
// name c. A name that does not belong to a worker is not passed on.
func TestWatcherLearnsWhoseDeathOneFound(t *testing.T) {
	for name, c := range map[string]struct{ lost, want string }{
		"a worker":  {"c", "c"},
		"itself":    {"b", "b"},
		"no worker": {"127.0.0.1:1", "b"},
		"nothing":   {"", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := store.NewMemory()
				s := newScene("a", "b", "c")
				death := cohort.New("rpc: worker", cohort.PeerLost, "it has closed its connection")
				death.Peer = c.lost
				New(st, config("b", 1, 3)).GaveUp(t.Context(), s, cohort.Wrap("rpc: shutdown", cohort.Aborted, death))
				s.change("b", func(x *State) { x.Connected = false }, ErrRefused)
				e, _ := watch(t, New(st, config("a", 0, 3)), s, closedWait, "b", "c")
				if e == nil || e.Code != cohort.PeerLost || e.Peer != c.want {
					t.Errorf("got %v, want %s", e, c.want)
				}
			})
		})
	}
}
