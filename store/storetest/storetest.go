// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store"
)

// brief is a timeout that is meant to pass.
const brief = 60 * time.Millisecond

// config is what the options say about the stores under test.
type config struct {
	open             func(t *testing.T) store.Store
	handles          func(t *testing.T, n int) []store.Store
	extraKeys        int
	deleteAlwaysTrue bool
	emptyIsNoNumber  bool
	noClose          bool
	largeValue       int
	noQueues         bool
	patience         time.Duration // bounds what must happen soon
}

// Option states a difference that PyTorch's stores have among themselves.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithHandles gives the suite a way to open n handles on the same, fresh data; with it the cases between handles run.
// The suite closes the handles.
func WithHandles(open func(t *testing.T, n int) []store.Store) Option {
	return optionFunc(func(c *config) { c.handles = open })
}

// WithExtraKeys says that NumKeys counts n bookkeeping keys of the store itself.
func WithExtraKeys(n int) Option { return optionFunc(func(c *config) { c.extraKeys = n }) }

// WithDeleteAlwaysTrue says that Delete returns true also for a missing key, as FileStore does.
func WithDeleteAlwaysTrue() Option { return optionFunc(func(c *config) { c.deleteAlwaysTrue = true }) }

// WithEmptyNotANumber says that Add refuses an empty value, as TCPStore does, instead of taking it for 0.
func WithEmptyNotANumber() Option { return optionFunc(func(c *config) { c.emptyIsNoNumber = true }) }

// WithLargeValue sets the size of the largest value that is tried; the default is 1 MiB.
func WithLargeValue(bytes int) Option { return optionFunc(func(c *config) { c.largeValue = bytes }) }

// WithoutClose leaves the cases about Close out, for a store whose Close does nothing, and closes nothing.
func WithoutClose() Option { return optionFunc(func(c *config) { c.noClose = true }) }

// WithoutQueues says that queue operations are ErrNotSupported, for a store that says so itself.
func WithoutQueues() Option { return optionFunc(func(c *config) { c.noQueues = true }) }

// Run runs the suite. open returns a fresh store with no user keys; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) store.Store, opts ...Option) {
	t.Helper()
	c := &config{largeValue: 1 << 20, patience: 20 * time.Second}
	for _, o := range opts {
		o.apply(c)
	}
	c.open = func(t *testing.T) store.Store {
		t.Helper()
		s := open(t)
		c.closeAtEnd(t, s)
		return s
	}
	groups := [][]testCase{pytorchCases, valueCases, numberCases, waitCases, extendedCases, concurrentCases}
	if !c.noClose {
		groups = append(groups, closeCases)
	}
	if c.handles != nil {
		groups = append(groups, handleCases)
	}
	for _, group := range groups {
		for _, one := range group {
			t.Run(one.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 3*c.patience)
				defer cancel()
				one.run(&suite{T: t, config: c, ctx: ctx})
			})
		}
	}
}

type testCase struct {
	name string
	run  func(*suite)
}

// suite is one case under way.
type suite struct {
	*testing.T
	*config
	ctx context.Context //nolint:containedctx // bounds the whole case
}

func (c *config) closeAtEnd(t *testing.T, s store.Store) {
	t.Helper()
	if c.noClose {
		return
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func (s *suite) store() store.Store {
	s.Helper()
	return s.open(s.T)
}

func (s *suite) shared(n int) []store.Store {
	s.Helper()
	all := s.handles(s.T, n)
	for _, one := range all {
		s.closeAtEnd(s.T, one)
	}
	return all
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) set(st store.Store, key, value string) {
	s.Helper()
	s.must(st.Set(s.ctx, key, []byte(value)))
}

func (s *suite) wantGet(st store.Store, key, want string) {
	s.Helper()
	got, err := st.Get(s.ctx, key)
	if err != nil || string(got) != want {
		s.Fatalf("get %q = %.80q, %v; want %.80q", key, got, err, want)
	}
}

func (s *suite) wantAdd(st store.Store, key string, delta, want int64) {
	s.Helper()
	got, err := st.Add(s.ctx, key, delta)
	if err != nil || got != want {
		s.Fatalf("add %q %d = %d, %v; want %d", key, delta, got, err, want)
	}
}

func (s *suite) wantCAS(st store.Store, key, expected, desired, want string) {
	s.Helper()
	got, err := st.CompareAndSet(s.ctx, key, []byte(expected), []byte(desired))
	if err != nil || string(got) != want {
		s.Fatalf("compare-and-set %q %q -> %q = %q, %v; want %q", key, expected, desired, got, err, want)
	}
}

func (s *suite) wantCheck(st store.Store, want bool, keys ...string) {
	s.Helper()
	got, err := st.Check(s.ctx, keys...)
	if err != nil || got != want {
		s.Fatalf("check %q = %v, %v; want %v", keys, got, err, want)
	}
}

// wantKeys checks the number of user keys.
func (s *suite) wantKeys(st store.Store, want int) {
	s.Helper()
	got, err := st.NumKeys(s.ctx)
	if err != nil || got != want+s.extraKeys {
		s.Fatalf("number of keys = %d, %v; want %d and %d extra", got, err, want, s.extraKeys)
	}
}

func (s *suite) wantDelete(st store.Store, key string, want bool) {
	s.Helper()
	got, err := st.Delete(s.ctx, key)
	if err != nil || got != (want || s.deleteAlwaysTrue) {
		s.Fatalf("delete %q = %v, %v; want %v", key, got, err, want || s.deleteAlwaysTrue)
	}
}

// wantTimeout checks an error that a passed deadline must give.
func (s *suite) wantTimeout(err error) {
	s.Helper()
	if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		s.Fatalf("got %v; want an error that matches store.ErrTimeout and context.DeadlineExceeded", err)
	}
}

// background runs f in a goroutine and returns a function that waits for its error.
func (s *suite) background(f func() error) func() error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error {
		s.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(s.patience):
			s.Fatal("a call that should have ended still waits")
			return nil
		}
	}
}

// settle gives calls in the background the time to begin to wait. Too short a time makes a case easier, never wrong.
func settle() { pause(20 * time.Millisecond) }

func pause(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // there is nothing to wait on

// Minimal returns a view of s with the core operations alone, as a user's own store may have: it hides every optional
// one. Tests of code that takes a store use it to see the fallbacks at work.
func Minimal(s store.Store) store.Store { return minimal{s} }

type minimal struct{ s store.Store }

func (m minimal) Set(ctx context.Context, key string, value []byte) error {
	return m.s.Set(ctx, key, value)
}
func (m minimal) Get(ctx context.Context, key string) ([]byte, error) { return m.s.Get(ctx, key) }
func (m minimal) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return m.s.Add(ctx, key, delta)
}

func (m minimal) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return m.s.CompareAndSet(ctx, key, expected, desired)
}

func (m minimal) Check(ctx context.Context, keys ...string) (bool, error) {
	return m.s.Check(ctx, keys...)
}

func (m minimal) Wait(ctx context.Context, keys ...string) error { return m.s.Wait(ctx, keys...) }

func (m minimal) Delete(ctx context.Context, key string) (bool, error) { return m.s.Delete(ctx, key) }
func (m minimal) NumKeys(ctx context.Context) (int, error)             { return m.s.NumKeys(ctx) }
func (m minimal) Timeout() time.Duration                               { return m.s.Timeout() }
func (m minimal) SetTimeout(d time.Duration)                           { m.s.SetTimeout(d) }
func (m minimal) Close() error                                         { return m.s.Close() }
