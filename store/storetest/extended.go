// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

var extendedCases = []testCase{
	{"AppendMore", func(s *suite) {
		st := s.store()
		var all strings.Builder
		for i := range 20 {
			piece := fmt.Sprint("piece ", i, ";")
			all.WriteString(piece)
			s.must(store.Append(s.ctx, st, "key", []byte(piece)))
		}
		want := all.String()
		s.wantGet(st, "key", want)
		s.must(store.Append(s.ctx, st, "empty", nil))
		s.wantGet(st, "empty", "")
		s.must(store.Append(s.ctx, st, "key", nil))
		s.wantGet(st, "key", want)
		s.wantDelete(st, "key", true)
		s.must(store.Append(s.ctx, st, "key", []byte("anew")))
		s.wantGet(st, "key", "anew")
	}},
	{"MultiMore", func(s *suite) {
		st := s.store()
		s.must(store.MultiSet(s.ctx, st, nil, nil))
		if got, err := store.MultiGet(s.ctx, st); err != nil || len(got) != 0 {
			s.Fatalf("multi-get of nothing: %q, %v", got, err)
		}
		if err := store.MultiSet(s.ctx, st, []string{"a", "b"}, [][]byte{nil}); !errors.Is(err, cohort.InvalidArgument) {
			s.Fatalf("two keys and one value: %v; want cohort.InvalidArgument", err)
		}
		s.wantCheck(st, false, "a")
		keys, values := make([]string, 500), make([][]byte, 500)
		for i := range keys {
			keys[i], values[i] = fmt.Sprint("key", i), fmt.Append(nil, "value", i)
		}
		s.must(store.MultiSet(s.ctx, st, keys, values))
		s.wantKeys(st, len(keys))
		got, err := store.MultiGet(s.ctx, st, keys...)
		s.must(err)
		if !slices.EqualFunc(got, values, slices.Equal) {
			s.Fatal("multi-get did not return what multi-set stored")
		}
		s.must(store.MultiSet(s.ctx, st, []string{"twice", "twice"}, [][]byte{[]byte("1"), []byte("2")}))
		s.wantGet(st, "twice", "2")
		got, err = store.MultiGet(s.ctx, st, "twice", "twice")
		s.must(err)
		if len(got) != 2 || string(got[0]) != "2" || string(got[1]) != "2" {
			s.Fatalf("multi-get of one key twice: %q", got)
		}
	}},
	{"ListKeys", func(s *suite) {
		st := s.store()
		if !store.Supports(st, store.FeatureListKeys) {
			if _, err := store.ListKeys(s.ctx, st); !errors.Is(err, store.ErrNotSupported) {
				s.Fatalf("list keys: %v; want store.ErrNotSupported", err)
			}
			return
		}
		list := func() []string {
			keys, err := store.ListKeys(s.ctx, st)
			s.must(err)
			slices.Sort(keys)
			return keys
		}
		if got := list(); len(got) != 0 {
			s.Fatalf("an empty store lists %q", got)
		}
		want := []string{"", "/", "a", "a/b", "b"}
		for _, key := range want {
			s.set(st, key, "x")
		}
		s.set(st, "gone", "x")
		s.wantDelete(st, "gone", true)
		if got := list(); !slices.Equal(got, want) {
			s.Fatalf("keys %q, want %q", got, want)
		}
		inner := store.Prefix("a", st)
		if got, err := inner.ListKeys(s.ctx); err != nil || !slices.Equal(got, []string{"b"}) {
			s.Fatalf("keys below a: %q, %v", got, err)
		}
	}},
	{"Queue", func(s *suite) {
		st := s.store()
		if s.noQueues {
			if err := store.QueuePush(s.ctx, st, "q", nil); !errors.Is(err, store.ErrNotSupported) {
				s.Fatalf("queue push: %v; want store.ErrNotSupported", err)
			}
			return
		}
		s.wantLen(st, 0)
		if _, err := store.QueuePop(s.ctx, st, "q", false); !errors.Is(err, store.ErrQueueEmpty) {
			s.Fatalf("pop of an empty queue: %v; want store.ErrQueueEmpty", err)
		}
		items := []string{"first", "", "third\x00", "fourth"}
		for i, item := range items {
			s.must(store.QueuePush(s.ctx, st, "q", []byte(item)))
			s.wantLen(st, i+1)
		}
		for i, item := range items {
			got, err := store.QueuePop(s.ctx, st, "q", i%2 == 0)
			if err != nil || string(got) != item {
				s.Fatalf("pop %d = %q, %v; want %q", i, got, err, item)
			}
			s.wantLen(st, len(items)-i-1)
		}
		// A pop that waits gets what is pushed later, or times out.
		pop := s.background(func() error {
			got, err := store.QueuePop(s.ctx, st, "q", true)
			if err == nil && string(got) != "late" {
				err = fmt.Errorf("popped %q", got)
			}
			return err
		})
		settle()
		s.must(store.QueuePush(s.ctx, st, "q", []byte("late")))
		s.must(pop())
		ctx, cancel := context.WithTimeout(s.ctx, brief)
		defer cancel()
		_, err := store.QueuePop(ctx, st, "q", true)
		s.wantTimeout(err)
		s.wantLen(st, 0)
	}},
	{"QueueConcurrent", func(s *suite) {
		if s.noQueues {
			return
		}
		st := s.store()
		s.queueOnce(st, st)
	}},
	{"Barrier", func(s *suite) {
		st := s.store()
		const world, rounds = 4, 3
		for range rounds {
			var ends []func() error
			for range world - 1 {
				ends = append(ends, s.background(func() error { return store.Barrier(s.ctx, st, "b", world) }))
			}
			settle()
			s.must(store.Barrier(s.ctx, st, "b", world))
			for _, end := range ends {
				s.must(end())
			}
		}
		ctx, cancel := context.WithTimeout(s.ctx, brief)
		defer cancel()
		s.wantTimeout(store.Barrier(ctx, st, "b", world))
	}},
	{"PrefixedOptional", func(s *suite) {
		st := s.store()
		view := store.Prefix("outer", store.Prefix("inner", st))
		for _, f := range store.Features() {
			if got, want := store.Supports(view, f), store.Supports(st, f); got != want {
				s.Errorf("%v: the view says %v, the store %v", f, got, want)
			}
		}
		s.must(store.Append(s.ctx, view, "k", []byte("a")))
		s.must(view.Append(s.ctx, "k", []byte("b")))
		s.must(store.Append(s.ctx, st, "inner/outer/k", []byte("c")))
		s.wantGet(st, "inner/outer/k", "abc")
		if s.noQueues {
			return
		}
		s.must(store.QueuePush(s.ctx, view, "q", []byte("1")))
		s.must(view.QueuePush(s.ctx, "q", []byte("2")))
		for _, want := range []string{"1", "2"} {
			got, err := store.QueuePop(s.ctx, st, "inner/outer/q", false)
			if err != nil || string(got) != want {
				s.Fatalf("pop = %q, %v; want %q", got, err, want)
			}
		}
	}},
}

func (s *suite) wantLen(st store.Store, want int) {
	s.Helper()
	if got, err := store.QueueLen(s.ctx, st, "q"); err != nil || got != want {
		s.Fatalf("queue length %d, %v; want %d", got, err, want)
	}
}

// queueOnce checks that among concurrent pushes and pops every item is popped once, those of one pusher in order.
func (s *suite) queueOnce(push, pop store.Store) {
	const pushers, poppers, each = 3, 3, 12
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[string]int{}
	for p := range pushers {
		wg.Go(func() {
			for i := range each {
				if err := store.QueuePush(s.ctx, push, "q", fmt.Append(nil, p, "/", i)); err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	for range poppers {
		wg.Go(func() {
			last := [pushers]int{-1, -1, -1}
			for range pushers * each / poppers {
				item, err := store.QueuePop(s.ctx, pop, "q", true)
				if err != nil {
					s.Error(err)
					return
				}
				var p, i int
				if _, err := fmt.Sscanf(string(item), "%d/%d", &p, &i); err != nil || p >= pushers || i <= last[p] {
					s.Errorf("popped %q after %v", item, last)
					return
				}
				last[p] = i
				mu.Lock()
				seen[string(item)]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != pushers*each {
		s.Fatalf("%d different items came out, want %d", len(seen), pushers*each)
	}
}
