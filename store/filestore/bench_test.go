// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore_test

import (
	"path/filepath"
	"testing"

	"github.com/cohort-dist/cohort/store/filestore"
)

func benchStore(b *testing.B) *filestore.Store {
	b.Helper()
	s, err := filestore.Open(b.Context(), filepath.Join(b.TempDir(), "store"), filestore.WithWorldSize(1))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

func BenchmarkAdd(b *testing.B) {
	s, ctx := benchStore(b), b.Context()
	for b.Loop() {
		if _, err := s.Add(ctx, "n", 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s, ctx := benchStore(b), b.Context()
	if err := s.Set(ctx, "k", make([]byte, 64)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Get(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}
