// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/mutation"
	"github.com/cohort-dist/cohort/store"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		mutation.Cleanup()
		os.Exit(code)
	}))
}

var silence = elastic.WithSilence(2 * time.Second)

var options = []elastic.CoordinatorOption{silence, elastic.WithLastCall(100 * time.Millisecond)}

// worker is a process that trains, as far as this package is concerned: it counts steps that all members have taken together.
type worker struct {
	step  int
	sizes []int        // of the groups that it was in
	dieAt int          // the step in which one member dies, 0 for never
	died  *atomic.Bool // one has: any of them may be a spare, so the first one at that step does it
	steps int          // when it is done
	id    elastic.ID
}

var errDies = errors.New("dies")

func (w *worker) run(ctx context.Context, s store.Store) error {
	m, err := elastic.Join(ctx, s, silence)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	w.id = m.ID()
	g, err := group.New(ctx, s, cohort.Rank(m.ID()), int(m.ID())+1, group.WithReconfigure(), group.WithTimeout(20*time.Second))
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	for {
		round, err := m.Next(ctx, g.Handle())
		if err != nil {
			return err
		}
		next, err := g.Reconfigure(ctx, round.UUID, round.Handles)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue // a member did not join: the coordinator finds out which
		}
		g = next
		w.sizes = append(w.sizes, g.Size())
		switch err := w.train(ctx, m, g); {
		case err == nil:
			return m.Done(ctx)
		case errors.Is(err, errDies), ctx.Err() != nil:
			return err
		}
	}
}

// train takes steps until it is done or the group is.
func (w *worker) train(ctx context.Context, m *elastic.Member, g *group.Group) error {
	// Who comes takes over the state of who is furthest.
	steps, err := group.AllGatherSlice(ctx, g, []int{w.step})
	if err != nil {
		return err
	}
	w.step = slices.Max(steps)
	for w.step < w.steps {
		over, err := m.Over(ctx)
		if err != nil {
			return err
		}
		if w.dieAt > 0 && w.step >= w.dieAt && w.died.CompareAndSwap(false, true) {
			return errDies
		}
		x := []int{1, 0}
		if over {
			x[1] = 1
		}
		if err := group.AllReduceSlice(ctx, g, x, group.Sum); err != nil {
			return err
		}
		if x[0] != g.Size() {
			return fmt.Errorf("%d of %d took a step", x[0], g.Size())
		}
		w.step++
		if x[1] > 0 {
			return errors.New("the round is over") // all members leave after the same step
		}
	}
	return nil
}

// coordinate runs a coordinator until ctx ends or the job does; ended waits for that and returns its error.
func coordinate(ctx context.Context, t *testing.T, low, high int, more ...elastic.CoordinatorOption) (s *store.Memory, ended func() error) {
	t.Helper()
	s = store.NewMemory()
	t.Cleanup(func() { _ = s.Close() })
	c, err := elastic.New(s, low, high, slices.Concat(options, more)...)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return s, sync.OnceValue(func() error { return <-done })
}

// TestTraining: a member dies, the spare takes its place, no other process starts again.
func TestTraining(t *testing.T) {
	for _, high := range []int{1, 3, 4} {
		t.Run(strconv.Itoa(high), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := store.NewMemory()
			defer func() { _ = s.Close() }()
			c, err := elastic.New(s, 1, high, options...)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() { err = c.Run(ctx) })
			var died atomic.Bool
			workers := make([]worker, high+2)
			ends := make([]error, len(workers))
			for i := range workers {
				workers[i] = worker{steps: 400, dieAt: 50, died: &died}
				wg.Go(func() { ends[i] = workers[i].run(ctx, s) })
			}
			wg.Wait()
			if err != nil {
				t.Fatal(err)
			}
			finished, dead := 0, 0
			for i, w := range workers {
				switch {
				case ends[i] == nil && w.step == w.steps:
					finished++
				case errors.Is(ends[i], errDies):
					dead++
				case errors.Is(ends[i], cohort.Closed):
				default:
					t.Errorf("worker %d at step %d: %v", i, w.step, ends[i])
				}
			}
			if finished < high || dead != 1 { // more when one was done before another failed
				t.Errorf("%d workers finished and %d died, want %d and one", finished, dead, high)
			}
		})
	}
}

// TestGrowth: a member that joins later is taken in while the others train.
func TestGrowth(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	c, err := elastic.New(s, 1, 2, options...)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var runErr error
	wg.Go(func() { runErr = c.Run(ctx) })
	first, second := worker{steps: 1 << 30}, worker{steps: 1 << 30, dieAt: 1, died: new(atomic.Bool)}
	both, stop := context.WithCancel(ctx)
	wg.Go(func() { _ = first.run(both, s) })
	if err := s.Wait(ctx, "default_pg/0//cpu//reconfigure/4294967296/claimed"); err != nil { // the first round has begun
		t.Fatal(err)
	}
	if err := second.run(both, s); !errors.Is(err, errDies) || !slices.Equal(second.sizes, []int{2}) {
		t.Errorf("the second one was in groups of %v and ended with %v", second.sizes, err)
	}
	stop()
	cancel()
	wg.Wait()
	if !errors.Is(runErr, context.Canceled) {
		t.Errorf("the coordinator ended with %v", runErr)
	}
}

func TestRefuses(t *testing.T) {
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	for _, size := range [][2]int{{0, 1}, {2, 1}, {1, 1 << 20}} {
		if _, err := elastic.New(s, size[0], size[1]); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%v: %v", size, err)
		}
	}
	if _, err := elastic.New(nil, 1, 1); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("%v", err)
	}
	if _, err := elastic.Join(t.Context(), nil); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("%v", err)
	}
}

// TestUnreadableQuestion: a malformed question is refused and does not affect others.
func TestUnreadableQuestion(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, ended := coordinate(ctx, t, 1, 1)
	p := store.Prefix(elastic.DefaultPrefix, s)
	for _, words := range []string{"", "null", `{"member": -1, "handle": "x"}`, `{"member": 0}`, strings.Repeat("x", 10000)} {
		n, err := p.Add(ctx, "asks", 1)
		if err != nil {
			t.Fatal(err)
		}
		if err = p.Set(ctx, fmt.Sprint("ask/", n), []byte(words)); err != nil {
			t.Fatal(err)
		}
		got, err := p.Get(ctx, fmt.Sprint("answer/", n))
		if err != nil || !strings.Contains(string(got), "malformed request") {
			t.Errorf("%q: %q, %v", words, got, err)
		}
	}
	w := worker{steps: 3}
	if err := w.run(ctx, s); err != nil {
		t.Error(err)
	}
	if err := ended(); err != nil {
		t.Error(err)
	}
}

// TestTooManyFailures: the coordinator ends the job and notifies all members.
func TestTooManyFailures(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, ended := coordinate(ctx, t, 2, 2, elastic.WithMaxFailures(0))
	var wg sync.WaitGroup
	ends := make([]error, 3)
	var died atomic.Bool
	for i := range ends {
		wg.Go(func() {
			w := worker{steps: 1 << 30, dieAt: 5, died: &died}
			ends[i] = w.run(ctx, s)
		})
	}
	wg.Wait()
	if err := ended(); !errors.Is(err, cohort.Aborted) {
		t.Errorf("the coordinator ended with %v", err)
	}
	told := 0
	for _, e := range ends {
		if errors.Is(e, cohort.Aborted) {
			told++
		}
	}
	if told < 1 {
		t.Errorf("%v", ends)
	}
}

// TestQuestionCrossesTheEnd: a question without an answer, because the job has just ended, does not wait for ever.
func TestQuestionCrossesTheEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, ended := coordinate(ctx, t, 1, 1)
	w := worker{steps: 1}
	if ended := w.run(ctx, s); ended != nil {
		t.Fatal(ended)
	}
	if err := ended(); err != nil {
		t.Fatal(err)
	}
	late := worker{steps: 1}
	if err := late.run(ctx, s); !errors.Is(err, cohort.Closed) {
		t.Errorf("%v", err)
	}
}
