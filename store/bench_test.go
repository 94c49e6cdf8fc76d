// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"github.com/cohort-dist/cohort/store"
)

func BenchmarkMemoryGet(b *testing.B) {
	m, ctx := store.NewMemory(), b.Context()
	_ = m.Set(ctx, "k", make([]byte, 64))
	for b.Loop() {
		if _, err := m.Get(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMemoryAdd(b *testing.B) {
	m, ctx := store.NewMemory(), b.Context()
	for b.Loop() {
		if _, err := m.Add(ctx, "n", 1); err != nil {
			b.Fatal(err)
		}
	}
}
