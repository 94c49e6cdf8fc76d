// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// makers are the ways in which a key comes into being.
func (s *suite) makers() map[string]func(st store.Store, key string) error {
	all := map[string]func(store.Store, string) error{
		"set": func(st store.Store, key string) error { return st.Set(s.ctx, key, []byte("7")) },
		"add": func(st store.Store, key string) error { _, err := st.Add(s.ctx, key, 7); return err },
		"compare-and-set": func(st store.Store, key string) error {
			_, err := st.CompareAndSet(s.ctx, key, nil, []byte("7"))
			return err
		},
		"append": func(st store.Store, key string) error { return store.Append(s.ctx, st, key, []byte("7")) },
		"multi-set": func(st store.Store, key string) error {
			return store.MultiSet(s.ctx, st, []string{"other " + key, key}, [][]byte{nil, []byte("7")})
		},
	}
	return all
}

// wakes checks that each way to make a key through maker wakes those who wait on waiter.
func (s *suite) wakes(waiter, maker store.Store) {
	for name, makeKey := range s.makers() {
		get := s.background(func() error {
			value, err := waiter.Get(s.ctx, name)
			if err == nil && string(value) != "7" {
				err = fmt.Errorf("get %q woke up with %q", name, value)
			}
			return err
		})
		wait := s.background(func() error { return waiter.Wait(s.ctx, name, name) })
		settle()
		s.must(makeKey(maker, name))
		s.must(get())
		s.must(wait())
	}
}

var waitCases = []testCase{
	{"WaitersWake", func(s *suite) {
		st := s.store()
		s.wakes(st, st)
	}},
	{"WaitForMany", func(s *suite) {
		st := s.store()
		keys := make([]string, 20)
		for i := range keys {
			keys[i] = fmt.Sprint("key", i)
		}
		wait := s.background(func() error { return st.Wait(s.ctx, keys...) })
		multi := s.background(func() error {
			values, err := store.MultiGet(s.ctx, st, keys...)
			if err == nil && len(values) != len(keys) {
				err = fmt.Errorf("multi-get returned %d values for %d keys", len(values), len(keys))
			}
			return err
		})
		settle()
		for _, key := range slices.Backward(keys) {
			s.wantCheck(st, false, keys...)
			s.set(st, key, "x")
		}
		s.must(wait())
		s.must(multi())
	}},
	{"ManyWaiters", func(s *suite) {
		st := s.store()
		var waits []func() error
		for i := range 24 {
			waits = append(waits, s.background(func() error {
				if i%2 == 0 {
					return st.Wait(s.ctx, "key")
				}
				_, err := st.Get(s.ctx, "key")
				return err
			}))
		}
		settle()
		s.set(st, "key", "x")
		for _, wait := range waits {
			s.must(wait())
		}
	}},
	{"BlockedWaitBlocksNoOther", func(s *suite) {
		st := s.store()
		wait := s.background(func() error { return st.Wait(s.ctx, "later") })
		settle()
		quick, cancel := context.WithTimeout(s.ctx, s.patience)
		defer cancel()
		for i := range 20 {
			s.must(st.Set(quick, fmt.Sprint("k", i), []byte("v")))
			_, err := st.Get(quick, fmt.Sprint("k", i))
			s.must(err)
		}
		s.set(st, "later", "x")
		s.must(wait())
	}},
	{"StoreTimeout", func(s *suite) {
		st := s.store()
		st.SetTimeout(brief)
		begin := time.Now()
		_, err := st.Get(context.Background(), "missing")
		s.wantTimeout(err)
		if !strings.Contains(err.Error(), "missing") || !strings.Contains(err.Error(), "timeout") {
			s.Fatalf("the error does not name the key and the timeout: %v", err)
		}
		s.wantTimeout(st.Wait(context.Background(), "missing", "also"))
		_, err = store.MultiGet(context.Background(), st, "missing", "also")
		s.wantTimeout(err)
		if took := time.Since(begin); took < 2*brief || took > s.patience {
			s.Fatalf("three waits of %v took %v", brief, took)
		}
		// The store goes on as if nothing had been, and what timed out can be had afterwards.
		s.wantAdd(st, "n", 7, 7)
		s.set(st, "missing", "x")
		s.wantGet(st, "missing", "x")
		s.wantAdd(st, "n", 1, 8)
		s.wantCheck(st, false, "missing", "also")
	}},
	{"ContextDeadlineWins", func(s *suite) {
		st := s.store()
		st.SetTimeout(s.patience)
		ctx, cancel := context.WithTimeout(context.Background(), brief)
		defer cancel()
		begin := time.Now()
		_, err := st.Get(ctx, "missing")
		s.wantTimeout(err)
		if took := time.Since(begin); took > s.patience/2 {
			s.Fatalf("a deadline of %v took %v", brief, took)
		}
		// It also wins when it is the later one.
		st.SetTimeout(brief)
		get := s.background(func() error { _, err := st.Get(s.ctx, "late"); return err })
		pause(4 * brief)
		s.set(st, "late", "x")
		s.must(get())
	}},
	{"NoTimeoutWaitsOn", func(s *suite) {
		for _, none := range []time.Duration{0, -1} {
			st := s.store()
			st.SetTimeout(none)
			ctx, cancel := context.WithCancel(context.Background())
			get := s.background(func() error { _, err := st.Get(ctx, "late"); return err })
			pause(2 * brief)
			s.set(st, "late", "x")
			s.must(get())
			cancel()
		}
	}},
	{"Cancel", func(s *suite) {
		st := s.store()
		ctx, cancel := context.WithCancel(s.ctx)
		get := s.background(func() error { _, err := st.Get(ctx, "missing"); return err })
		wait := s.background(func() error { return st.Wait(ctx, "missing") })
		settle()
		cancel()
		for _, end := range []func() error{get, wait} {
			if err := end(); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrTimeout) {
				s.Fatalf("a cancelled wait: %v", err)
			}
		}
		// A context that has ended stops every operation before it does anything.
		if err := st.Set(ctx, "key", nil); !errors.Is(err, context.Canceled) {
			s.Fatalf("set: %v", err)
		}
		if _, err := st.Add(ctx, "key", 1); !errors.Is(err, context.Canceled) {
			s.Fatalf("add: %v", err)
		}
		s.wantCheck(st, false, "key")
		s.set(st, "missing", "x")
		s.wantGet(st, "missing", "x")
	}},
	{"DeleteAndWaitAgain", func(s *suite) {
		st := s.store()
		for i := range 5 {
			s.wantCheck(st, false, "key")
			get := s.background(func() error { _, err := st.Get(s.ctx, "key"); return err })
			s.set(st, "key", strconv.Itoa(i))
			s.must(get())
			s.wantDelete(st, "key", true)
		}
	}},
}

var closeCases = []testCase{
	{"Close", func(s *suite) {
		st := s.open(s.T)
		get := s.background(func() error { _, err := st.Get(s.ctx, "missing"); return err })
		wait := s.background(func() error { return st.Wait(s.ctx, "missing") })
		settle()
		s.must(st.Close())
		for _, end := range []func() error{get, wait} {
			if err := end(); !errors.Is(err, store.ErrClosed) {
				s.Fatalf("a wait that Close ended: %v; want store.ErrClosed", err)
			}
		}
		s.must(st.Close())
		for name, op := range map[string]func() error{
			"set":             func() error { return st.Set(s.ctx, "k", nil) },
			"get":             func() error { _, err := st.Get(s.ctx, "k"); return err },
			"add":             func() error { _, err := st.Add(s.ctx, "k", 1); return err },
			"compare-and-set": func() error { _, err := st.CompareAndSet(s.ctx, "k", nil, nil); return err },
			"check":           func() error { _, err := st.Check(s.ctx, "k"); return err },
			"wait":            func() error { return st.Wait(s.ctx, "k") },
			"delete":          func() error { _, err := st.Delete(s.ctx, "k"); return err },
			"number of keys":  func() error { _, err := st.NumKeys(s.ctx); return err },
			"append":          func() error { return store.Append(s.ctx, st, "k", []byte("v")) },
			"multi-get":       func() error { _, err := store.MultiGet(s.ctx, st, "k"); return err },
			"multi-set":       func() error { return store.MultiSet(s.ctx, st, []string{"k"}, [][]byte{nil}) },
		} {
			if err := op(); !errors.Is(err, store.ErrClosed) {
				s.Errorf("%s after Close: %v; want store.ErrClosed", name, err)
			}
		}
	}},
}
