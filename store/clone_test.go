// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
	"github.com/cohort-dist/cohort/store/storetest"
)

func TestClone(t *testing.T) {
	file, err := filestore.Open(t.Context(), filepath.Join(t.TempDir(), "job"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, s := range []store.Store{file, store.NewMemory(), store.Prefix("p", store.NewMemory())} {
		clone, err := store.Clone(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if err = s.Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		if got, err := clone.Get(t.Context(), "k"); string(got) != "v" || err != nil {
			t.Errorf("%v: %q, %v", s, got, err)
		}
		if err := clone.Close(); err != nil {
			t.Error(err)
		}
		if ok, err := s.Check(t.Context(), "k"); !ok || err != nil {
			t.Errorf("%v after its clone was closed: %v, %v", s, ok, err)
		}
		if text := fmt.Sprint(s); strings.Contains(text, "0x") || len(text) > 200 {
			t.Errorf("prints as %s", text)
		}
	}
	if _, err := store.Clone(t.Context(), storetest.Minimal(store.NewMemory())); !errors.Is(err, store.ErrNotSupported) {
		t.Errorf("a store without clones: %v", err)
	}
}

func TestAddNumber(t *testing.T) {
	if sum, text, err := store.AddNumber("k", []byte("  12abc"), 1); sum != 13 || string(text) != "13" || err != nil {
		t.Errorf("%d, %q, %v", sum, text, err)
	}
	if _, _, err := store.AddNumber("k", []byte("abc"), 1); !errors.Is(err, store.ErrNotANumber) || !strings.Contains(err.Error(), `"k"`) {
		t.Errorf("%v", err)
	}
}
