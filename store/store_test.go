// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memoryHandles(wrap func(store.Store) store.Store) storetest.Option {
	return storetest.WithHandles(func(t *testing.T, n int) []store.Store {
		t.Helper()
		first := store.NewMemory()
		all := []store.Store{wrap(first)}
		for range n - 1 {
			next, err := first.Clone(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, wrap(next))
		}
		return all
	})
}

func runOverMemory(t *testing.T, wrap func(store.Store) store.Store) {
	t.Helper()
	storetest.Run(t, func(*testing.T) store.Store { return wrap(store.NewMemory()) }, memoryHandles(wrap))
}

func TestMemory(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m store.Store) store.Store { return m })
}

func TestPrefixMemory(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m store.Store) store.Store { return store.Prefix("test_prefix", m) })
}

func TestNestedPrefixMemory(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m store.Store) store.Store {
		return store.Prefix("outer", store.Prefix("", store.Prefix("in/ner", m)))
	})
}

func TestMinimalStore(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m store.Store) store.Store { return storetest.Minimal(m) })
}

func TestPrefixMinimalStore(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m store.Store) store.Store { return store.Prefix("p", storetest.Minimal(m)) })
}
