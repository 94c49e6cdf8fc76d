// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package filestore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

// quickly fails the test if f takes too long.
func quickly(t *testing.T, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if took := time.Since(begin); took >= 5*time.Second { // a second is promised, and machines have their moments
		t.Errorf("it took %v", took)
	}
}

func TestBadPath(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"empty": "", "missing folder": filepath.Join(dir, "no", "such"), "folder": dir, "fifo": fifo, "device": os.DevNull,
		"loop": loop, "nul": "a\x00b", "long": filepath.Join(dir, strings.Repeat("x", 5000)),
	} {
		quickly(t, func() {
			s, err := Open(t.Context(), path)
			var e *cohort.Error
			if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), "filestore: open: ") {
				t.Errorf("%s: %v, %v", name, s, err)
			}
			t.Log(err)
		})
	}
}

func TestTruncatedFile(t *testing.T) {
	whole := record("refcount/", "1") + record("/key", "value") + record("-/key", "")
	ends := map[int]bool{0: true, len(record("refcount/", "1")): true, len(record("refcount/", "1") + record("/key", "value")): true}
	for cut := range len(whole) {
		path := tempPath(t)
		if err := os.WriteFile(path, []byte(whole[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		quickly(t, func() {
			s, err := Open(t.Context(), path)
			if ends[cut] {
				if err != nil {
					t.Fatalf("cut at the end of a record, %d: %v", cut, err)
				}
				_ = s.Close()
				return
			}
			if !errors.Is(err, cohort.Protocol) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "Repair") {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			if got := content(t, path); got != whole[:cut] {
				t.Fatalf("cut at %d: the file was changed to %q", cut, got)
			}
		})
	}
}

func TestForeignFile(t *testing.T) {
	for name, data := range map[string]string{
		"text":   "#!/bin/sh\necho this is a script\n",
		"zeros":  strings.Repeat("\x00", 4096),
		"elf":    "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 100),
		"ones":   strings.Repeat("\xff", 100),
		"key":    record("no slash anywhere", "value"),
		"half":   record("/key", "value") + record("strange", "value"),
		"json":   `{"a": 1}`,
		"length": record("/k", "v") + "\x02\x00\x00\x00/k\xff\xff\xff\xffxxxx",
	} {
		path := tempPath(t)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		quickly(t, func() {
			for range 2 {
				_, err := Open(t.Context(), path)
				if !errors.Is(err, cohort.Protocol) {
					t.Errorf("%s: %v", name, err)
				}
				t.Log(err)
			}
			if _, err := Repair(t.Context(), path); err == nil {
				t.Errorf("%s: it was repaired", name)
			}
		})
		if got := content(t, path); got != data {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

func TestHugeFile(t *testing.T) {
	path := tempPath(t)
	if err := os.WriteFile(path, []byte("\x04\x00\x00\x00/key\xf0\xff\xff\xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skipf("no sparse files here: %v", err)
	}
	quickly(t, func() {
		if _, err := Open(t.Context(), path); !errors.Is(err, cohort.Protocol) {
			t.Errorf("got %v", err)
		}
	})
}

func TestFailedWriteLeavesNoTrace(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	s := open(t, path)
	if err := s.Set(ctx, "k", []byte("old")); err != nil {
		t.Fatal(err)
	}
	before := content(t, path)
	for part := range 12 {
		s.writeAt = func(f *os.File, p []byte, offset int64) (int, error) {
			n, _ := f.WriteAt(p[:min(part, len(p))], offset)
			return n, unix.ENOSPC
		}
		err := s.Set(ctx, "k", []byte("new"))
		if !errors.Is(err, unix.ENOSPC) || cohort.CodeOf(err) != cohort.Unavailable {
			t.Errorf("set: %v", err)
		}
		if _, err := s.Add(ctx, "n", 1); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("add: %v", err)
		}
		if got := content(t, path); got != before {
			t.Fatalf("after %d bytes: the file was changed to %q", part, got)
		}
		if v, err := s.Get(ctx, "k"); string(v) != "old" || err != nil {
			t.Errorf("get: %q, %v", v, err)
		}
	}
	s.writeAt = (*os.File).WriteAt
	if n, err := s.Add(ctx, "n", 1); n != 1 || err != nil {
		t.Errorf("when there is room again: %d, %v", n, err)
	}
}

func TestTornTailIsCutByAHandleThatWasOpen(t *testing.T) {
	ctx := t.Context()
	piece := record("/torn", "a value that never arrives")
	for cut := 1; cut < len(piece); cut++ {
		path := tempPath(t)
		reader, writer := open(t, path), open(t, path)
		if err := writer.Set(ctx, "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		good := content(t, path)
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(piece[:cut])
		_ = f.Close()
		// A handle that opens now cannot know.
		if _, err := Open(ctx, path); !errors.Is(err, cohort.Protocol) || content(t, path) != good+piece[:cut] {
			t.Fatalf("cut at %d: open: %v", cut, err)
		}
		if cut%2 == 0 {
			if ok, err := reader.Check(ctx, "torn"); ok || err != nil {
				t.Fatalf("cut at %d: check: %v, %v", cut, ok, err)
			}
		} else if err := writer.Set(ctx, "k2", []byte("v2")); err != nil {
			t.Fatalf("cut at %d: set: %v", cut, err)
		}
		want := good
		if cut%2 == 1 {
			want += record("/k2", "v2")
		}
		if got := content(t, path); got != want {
			t.Fatalf("cut at %d: the file is %q, want %q", cut, got, want)
		}
		if v, err := reader.Get(ctx, "k"); string(v) != "v" || err != nil {
			t.Fatalf("get: %q, %v", v, err)
		}
	}
}

// An unfinished record under a lock is work in progress, not debris.
func TestWriterAtWorkIsNotCut(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	s := open(t, path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	whole := record("/slow", "value")
	_, _ = f.WriteString(whole[:7])
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	for name, op := range map[string]func() error{
		"check": func() error { _, err := s.Check(short, "slow"); return err },
		"set":   func() error { return s.Set(short, "x", nil) },
		"get":   func() error { _, err := s.Get(short, "slow"); return err },
		"open":  func() error { _, err := Open(short, path); return err },
	} {
		if err := op(); !errors.Is(err, store.ErrTimeout) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s while another holds the lock: %v", name, err)
		}
	}
	get := make(chan error, 1)
	go func() { _, err := s.Get(ctx, "slow"); get <- err }()
	_, _ = f.WriteString(whole[7:])
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	if err := <-get; err != nil {
		t.Error(err)
	}
	if err := s.Set(ctx, "x", nil); err != nil {
		t.Error(err)
	}
}

func TestRepair(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	good := record("refcount/", "1") + record("/k", "v")
	if err := os.WriteFile(path, []byte(good+record("/torn", "value")[:9]), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Repair(ctx, path); n != 9 || err != nil || content(t, path) != good {
		t.Errorf("repair: %d, %v", n, err)
	}
	if n, err := Repair(ctx, path); n != 0 || err != nil {
		t.Errorf("repair of a good file: %d, %v", n, err)
	}
	if _, err := Repair(ctx, path+"no"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("repair of no file: %v", err)
	}
	s := open(t, path)
	if v, err := s.Get(ctx, "k"); string(v) != "v" || err != nil {
		t.Errorf("get: %q, %v", v, err)
	}
}

func TestShrunkenFile(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	s := open(t, path)
	_ = s.Set(ctx, "k", []byte("v"))
	if err := os.Truncate(path, 5); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Set(ctx, "k", nil); !errors.Is(err, cohort.Protocol) {
			t.Errorf("set: %v", err)
		}
		if _, err := s.Get(ctx, "k"); !errors.Is(err, cohort.Protocol) {
			t.Errorf("get: %v", err)
		}
	}
	if len(content(t, path)) != 5 {
		t.Error("the file was changed")
	}
	if err := s.Close(); !errors.Is(err, cohort.Protocol) {
		t.Errorf("close: %v", err)
	}
}

// TestRewrittenFile: a file that was emptied and written anew is another store, however long it is.
func TestRewrittenFile(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	s := open(t, path)
	if err := s.Set(ctx, "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	other := record("refcount/", "1") + record("/o", "w") + record("/more", "x") // a record ends where the old file ended
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if v, err := s.Get(ctx, "k"); !errors.Is(err, cohort.Replaced) {
			t.Errorf("get: %q, %v", v, err)
		}
		if err := s.Set(ctx, "k", nil); !errors.Is(err, cohort.Replaced) {
			t.Errorf("set: %v", err)
		}
	}
	if content(t, path) != other {
		t.Error("the file was changed")
	}
}

// TestRewrittenToTheSameSize: a writer notices a file that was written anew and is as long as before.
func TestRewrittenToTheSameSize(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	s := open(t, path)
	if err := s.Set(ctx, "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	other := record("refcount/", "1") + record("/o", "w")
	if len(other) != len(content(t, path)) {
		t.Fatalf("%d bytes, and %d before", len(other), len(content(t, path)))
	}
	if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(ctx, "k2", nil); !errors.Is(err, cohort.Replaced) {
		t.Errorf("set: %v", err)
	}
	if content(t, path) != other {
		t.Error("the file was changed")
	}
}

func TestSizes(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	s := open(t, path, WithMaxValue(10))
	before := content(t, path)
	for name, err := range map[string]error{
		"value":     s.Set(ctx, "k", make([]byte, 11)),
		"key":       s.Set(ctx, strings.Repeat("k", defaultMaxKey), nil),
		"multi-set": s.MultiSet(ctx, []string{"a", "b"}, [][]byte{nil, make([]byte, 11)}),
	} {
		if !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if content(t, path) != before {
		t.Error("a refused write changed the file")
	}
	if err := s.Set(ctx, "k", make([]byte, 10)); err != nil {
		t.Error(err)
	}
	if err := s.Append(ctx, "k", []byte("x")); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("append: %v", err)
	}
}
