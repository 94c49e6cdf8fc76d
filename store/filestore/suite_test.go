// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
	"github.com/cohort-dist/cohort/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func runOverFile(t *testing.T, wrap func(store.Store) store.Store) {
	t.Helper()
	t.Parallel()
	open := func(t *testing.T, path string) store.Store {
		t.Helper()
		s, err := filestore.Open(t.Context(), path, filestore.WithWorldSize(1))
		if err != nil {
			t.Fatal(err)
		}
		return wrap(s)
	}
	storetest.Run(t,
		func(t *testing.T) store.Store { t.Helper(); return open(t, filepath.Join(t.TempDir(), "store")) },
		storetest.WithDeleteAlwaysTrue(), storetest.WithExtraKeys(1),
		storetest.WithHandles(func(t *testing.T, n int) []store.Store {
			t.Helper()
			path := filepath.Join(t.TempDir(), "store")
			var all []store.Store
			for range n {
				all = append(all, open(t, path))
			}
			return all
		}))
}

func TestFileStore(t *testing.T) { runOverFile(t, func(s store.Store) store.Store { return s }) }

func TestPrefixFileStore(t *testing.T) {
	runOverFile(t, func(s store.Store) store.Store { return store.Prefix("test_prefix", s) })
}

func TestNestedPrefixFileStore(t *testing.T) {
	runOverFile(t, func(s store.Store) store.Store { return store.Prefix("a", store.Prefix("b", s)) })
}

func TestMinimalFileStore(t *testing.T) { runOverFile(t, storetest.Minimal) }
