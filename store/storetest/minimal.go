// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort/store"
)

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
