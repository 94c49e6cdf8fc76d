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

func memoryHandles(wrap func(*store.Memory) store.Store) storetest.Option {
	return storetest.WithHandles(func(_ *testing.T, n int) []store.Store {
		first := store.NewMemory()
		all := []store.Store{wrap(first)}
		for range n - 1 {
			all = append(all, wrap(first.Clone()))
		}
		return all
	})
}

func runOverMemory(t *testing.T, wrap func(*store.Memory) store.Store) {
	t.Helper()
	storetest.Run(t, func(*testing.T) store.Store { return wrap(store.NewMemory()) }, memoryHandles(wrap))
}

func TestMemory(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m *store.Memory) store.Store { return m })
}

func TestPrefixMemory(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m *store.Memory) store.Store { return store.Prefix("test_prefix", m) })
}

func TestNestedPrefixMemory(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m *store.Memory) store.Store {
		return store.Prefix("outer", store.Prefix("", store.Prefix("in/ner", m)))
	})
}

func TestMinimalStore(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m *store.Memory) store.Store { return storetest.Minimal(m) })
}

func TestPrefixMinimalStore(t *testing.T) {
	t.Parallel()
	runOverMemory(t, func(m *store.Memory) store.Store { return store.Prefix("p", storetest.Minimal(m)) })
}
