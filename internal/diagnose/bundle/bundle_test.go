// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestPrune: only bundles are removed, the oldest first.
func TestPrune(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"20260101T000000Z_a", "20260102T000000Z_b", "20260103T000000Z_c", "mine"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	Prune(dir, 2)
	if got, want := names(t, dir), []string{"20260102T000000Z_b", "20260103T000000Z_c", "mine"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}

// TestBounds: a bundle has no more than its size, nothing empty, and is its owner's alone.
func TestBounds(t *testing.T) {
	t.Parallel()
	b := Create(t.TempDir(), "job", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	b.Write("large", make([]byte, maxBytes-10))
	b.Write("empty", nil)
	b.Write("too-much", make([]byte, 11))
	b.Write("last", []byte("0123456789"))
	dir, err := b.Close()
	if err != nil || filepath.Base(dir) != "20260102T030405Z_job" || !slices.Equal(names(t, dir), []string{"large", "last"}) {
		t.Fatalf("%v %s %v", err, dir, names(t, dir))
	}
	for _, name := range []string{dir, filepath.Join(dir, "last")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", name, err, info.Mode())
		}
	}
	b.Keep(dir, "last") // no space is left
	other := Create(t.TempDir(), "other", time.Now())
	other.Keep(dir, "last")
	other.Keep(filepath.Join(dir, "none"), "last")
	if got := names(t, other.dir); !slices.Equal(got, []string{"last"}) {
		t.Errorf("kept %v", got)
	}
	broken := Create(filepath.Join(dir, "last"), "job", time.Now())
	broken.Write("file", []byte("x"))
	if _, err := broken.Close(); err == nil {
		t.Error("a bundle below a file was written")
	}
}
