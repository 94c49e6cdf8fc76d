// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// record is the format once more, written down independently of the codec.
func record(key, value string) string {
	le := func(n int) string { return string([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}) }
	return le(len(key)) + key + le(len(value)) + value
}

func tempPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "store")
}

func open(t *testing.T, path string, opts ...Option) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFileBytes(t *testing.T) {
	path := tempPath(t)
	ctx := t.Context()
	s := open(t, path)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Set(ctx, "a", []byte("xy")))
	_, err := s.Add(ctx, "n", 5)
	must(err)
	_, err = s.Add(ctx, "n", -7)
	must(err)
	_, err = s.CompareAndSet(ctx, "c", nil, []byte("new"))
	must(err)
	_, err = s.CompareAndSet(ctx, "c", []byte("other"), []byte("newer"))
	must(err)
	_, err = s.Delete(ctx, "a")
	must(err)
	must(s.Append(ctx, "c", []byte("er")))
	must(s.MultiSet(ctx, []string{"x", "-y"}, [][]byte{[]byte("1"), nil}))
	must(s.Close())
	want := record("refcount/", "1") + record("/a", "xy") + record("/n", "5") + record("/n", "-2") + record("/c", "new") +
		record("-/a", "") + record("/c", "newer") + record("/x", "1") + record("/-y", "") +
		record("cleanup/", "1") + record("refcount/", "0")
	if diff := cmp.Diff(hex.Dump([]byte(want)), hex.Dump([]byte(content(t, path)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if info, _ := os.Stat(path); info.Mode().Perm()&0o600 != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestOldFile(t *testing.T) {
	path := tempPath(t)
	old := record("/a", "xy") + record("/n", "41") + record("/gone", "1") + record("-/gone", "") + record("cleanup/", "1")
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	s, ctx := open(t, path), t.Context()
	if v, err := s.Get(ctx, "a"); string(v) != "xy" || err != nil {
		t.Errorf("get: %q, %v", v, err)
	}
	if n, err := s.Add(ctx, "n", 1); n != 42 || err != nil {
		t.Errorf("add: %d, %v", n, err)
	}
	if ok, err := s.Check(ctx, "gone"); ok || err != nil {
		t.Errorf("a deleted key: %v, %v", ok, err)
	}
	if n, err := s.NumKeys(ctx); n != 4 || err != nil { // a, n, cleanup/, refcount/
		t.Errorf("%d keys, %v", n, err)
	}
	if keys, err := s.ListKeys(ctx); len(keys) != 2 || err != nil {
		t.Errorf("keys %q, %v", keys, err)
	}
	if got := content(t, path); got != old+record("refcount/", "1")+record("/n", "42") {
		t.Errorf("the file is now %q", got)
	}
}

// Whatever a table replays in pieces is what it replays at once, and a part of a record is never taken.
func TestReplayInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log []byte
		var ends []int64
		want := map[string][]byte{}
		for range rapid.IntRange(0, 12).Draw(t, "records") {
			key := rapid.SampledFrom([]string{"/a", "/b", "/", "/-c", "refcount/"}).Draw(t, "key")
			if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
				log = appendRecord(log, deletePrefix+key, nil)
				delete(want, key)
			} else {
				value := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "value")
				log = appendRecord(log, key, value)
				want[key] = value
			}
			ends = append(ends, int64(len(log)))
		}
		table := newTable()
		size := int64(0)
		for size < int64(len(log)) {
			size = min(size+int64(rapid.IntRange(1, 40).Draw(t, "piece")), int64(len(log)))
			err := table.replay(bytes.NewReader(log[table.pos:]), size, limits{1 << 10, 1 << 10})
			last := int64(0)
			for _, end := range ends {
				if end <= size {
					last = end
				}
			}
			if table.pos != last || (err == nil) != (last == size) || err != nil && !errors.Is(err, errTorn) {
				t.Fatalf("at %d of %d: position %d, want %d: %v", size, len(log), table.pos, last, err)
			}
		}
		got := map[string]string{}
		for k, v := range table.values {
			got[k] = string(v)
		}
		expect := map[string]string{}
		for k, v := range want {
			expect[k] = string(v)
		}
		if diff := cmp.Diff(expect, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzReplay(f *testing.F) {
	f.Add([]byte(record("refcount/", "1") + record("/a", "xy") + record("-/a", "")))
	f.Add([]byte(record("/a", "xy")[:7]))
	f.Add([]byte("#!/bin/sh\necho hello\n"))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, log []byte) {
		table := newTable()
		err := table.replay(bytes.NewReader(log), int64(len(log)), limits{1 << 10, 1 << 12})
		switch {
		case err == nil && table.pos != int64(len(log)):
			t.Fatalf("ended well at %d of %d", table.pos, len(log))
		case err != nil && !errors.Is(err, errTorn) && !errors.Is(err, errForeign):
			t.Fatalf("an error of another kind: %v", err)
		case err != nil && table.pos >= int64(len(log)):
			t.Fatalf("failed behind the end: %v", err)
		}
		// What was read is readable again, and writes as it was read.
		again := newTable()
		if err := again.replay(bytes.NewReader(log[:table.pos]), table.pos, limits{1 << 10, 1 << 12}); err != nil {
			t.Fatal(err)
		}
	})
}

// endless is a file of which only the size is known: reading beyond what a record needs would never end.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "\x02\x00\x00\x00/a\xff\xff\xff\xff"[(e.read+int64(i))%10]
	}
	e.read += int64(len(p))
	return len(p), nil
}

func TestReplayIsBounded(t *testing.T) {
	e := &endless{}
	table := newTable()
	err := table.replay(e, 1<<50, limits{defaultMaxKey, defaultMaxValue})
	if !errors.Is(err, errForeign) || !strings.Contains(err.Error(), "over the limit") || e.read > 1<<20 {
		t.Errorf("read %d bytes: %v", e.read, err)
	}
	if err := table.replay(io.LimitReader(e, 1), 100, limits{10, 10}); err == nil {
		t.Error("a short read went unseen")
	}
}
