// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
)

func TestFullDisk(t *testing.T) {
	dir := testkit.SmallDisk(t)
	path, ctx := filepath.Join(dir, "store"), t.Context()
	s := open(t, path)
	var full error
	written := 0
	quickly(t, func() {
		for ; full == nil && written < 100; written++ {
			full = s.Set(ctx, "k", bytes.Repeat([]byte{byte(written)}, 3000))
		}
	})
	if !errors.Is(full, unix.ENOSPC) || written > 30 {
		t.Fatalf("after %d writes: %v", written, full)
	}
	t.Log(full)
	before := content(t, path)
	if err := s.Set(ctx, "k", make([]byte, 10000)); !errors.Is(err, unix.ENOSPC) || content(t, path) != before {
		t.Errorf("a failed write changed the file: %v", err)
	}
	fresh := newStore(path)
	if err := fresh.refresh(fresh.waiting(ctx)); err != nil {
		t.Errorf("the file cannot be read: %v", err)
	}
	fresh.forget()
	if v, err := s.Get(ctx, "k"); err != nil || v[0] != byte(written-2) {
		t.Errorf("the last value that was stored is gone: %d, %v", v[0], err)
	}
}

// TestHolderOfTheLock: the error of a wait for the lock names the process that holds it.
func TestHolderOfTheLock(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	s := open(t, path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	want := fmt.Sprintf("process %d (", os.Getpid())
	if err = s.Set(short, "k", nil); !errors.Is(err, store.ErrTimeout) || !strings.Contains(err.Error(), want) {
		t.Errorf("while this process holds the lock: %v, want %q", err, want)
	}
	locks := "1: -> FLOCK  ADVISORY  WRITE 5 08:01:4711 0 EOF\n2: POSIX  ADVISORY  WRITE 6 08:01:4711 0 EOF\n" +
		"3: FLOCK  ADVISORY  WRITE 7 08:02:4711 0 EOF\n4: FLOCK  ADVISORY  READ 8 08:01:4711 0 EOF\n"
	if got := holderOf(locks, fileID{unix.Mkdev(8, 1), 4711}); got != 8 {
		t.Errorf("process %d holds the lock, want 8", got)
	}
	if got := (&heldError{id: fileID{1, 2}}).who(); got != "another process holds the lock of the file" {
		t.Errorf("a holder that is not known: %s", got)
	}
}

// TestFileSizeLimit: a file store ends at the limit of the size of files with an error, not with a signal and half a record.
func TestFileSizeLimit(t *testing.T) { // not parallel: the limit is that of the process
	path, ctx := tempPath(t), t.Context()
	s := open(t, path)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_FSIZE, &before) })
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1000, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(ctx, "k", make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	good := content(t, path)
	if err := s.Set(ctx, "k", make([]byte, 600)); !errors.Is(err, unix.EFBIG) || content(t, path) != good {
		t.Errorf("a record over the limit: %v; the file has %d bytes and had %d", err, len(content(t, path)), len(good))
	}
	if v, err := s.Get(ctx, "k"); len(v) != 500 || err != nil {
		t.Errorf("%d bytes, %v", len(v), err)
	}
}
