// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestRefcount(t *testing.T) {
	path := tempPath(t)
	first, second := open(t, path, WithWorldSize(1)), open(t, path, WithWorldSize(1))
	if err := first.Close(); err != nil || !exists(path) {
		t.Fatalf("one of two closed: %v, file %v", err, exists(path))
	}
	if err := second.Close(); err != nil || exists(path) {
		t.Fatalf("both closed: %v, file %v", err, exists(path))
	}
	if err := first.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

func TestWorldSizeAndRemoval(t *testing.T) {
	for _, c := range []struct {
		world, handles int
		removed        bool
	}{{1, 1, true}, {2, 1, false}, {2, 2, true}, {0, 1, true}, {-1, 3, false}, {2, 3, true}} {
		path := tempPath(t)
		var all []*Store
		for range c.handles {
			all = append(all, open(t, path, WithWorldSize(c.world)))
		}
		for _, s := range all {
			if !exists(path) {
				t.Errorf("%+v: removed too early", c)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if exists(path) == c.removed {
			t.Errorf("%+v: the file exists: %v", c, exists(path))
		}
	}
	// One after the other counts too: the second finds the cleanup of the first.
	path := tempPath(t)
	for i := range 2 {
		_ = open(t, path, WithWorldSize(2)).Close()
		if exists(path) != (i == 0) {
			t.Errorf("after %d of two: the file exists: %v", i+1, exists(path))
		}
	}
}

// TestLastCloseOnAFullDisk: the last of all handles removes the file though its own end cannot be written any more; one
// that is not the last says so.
func TestLastCloseOnAFullDisk(t *testing.T) {
	path := tempPath(t)
	var all []*Store
	for range 3 {
		all = append(all, open(t, path, WithWorldSize(2)))
	}
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	full := func(*os.File, []byte, int64) (int, error) { return 0, unix.ENOSPC }
	all[1].writeAt = full
	if err := all[1].Close(); !errors.Is(err, unix.ENOSPC) || !exists(path) ||
		!strings.Contains(err.Error(), "no space left on device; the file still counts this handle") {
		t.Errorf("a handle that is not the last: %v, the file exists: %v", err, exists(path))
	}
	if err := all[2].Close(); err != nil || !exists(path) { // it counts the one before as open
		t.Errorf("%v, the file exists: %v", err, exists(path))
	}
	last := open(t, tempPath(t), WithWorldSize(1))
	last.writeAt = full
	if err := last.Close(); err != nil || exists(last.Path()) {
		t.Errorf("the last handle: %v, the file exists: %v", err, exists(last.Path()))
	}
}

// A store whose file was removed is gone for those that used it: another one at the same path is not taken for it.
func TestFileRemovedInUse(t *testing.T) {
	path, ctx := tempPath(t), t.Context()
	a, b := open(t, path, WithWorldSize(1)), open(t, path, WithWorldSize(1))
	_ = a.Set(ctx, "n", []byte("5"))
	waits := make(chan error, 1)
	go func() { waits <- b.Wait(ctx, "never") }()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, cohort.Replaced) {
		t.Errorf("a wait: %v", err)
	}
	gone := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, cohort.Replaced) || !strings.Contains(err.Error(), path+" was removed or replaced") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 2 { // without a file, and with another one
		_, err := a.Check(ctx, "n")
		gone("check", err)
		_, err = a.NumKeys(ctx)
		gone("number of keys", err)
		_, err = a.Get(ctx, "n")
		gone("get", err)
		_, err = a.Add(ctx, "n", 1) // it would return 1
		gone("add", err)
		gone("set", b.Set(ctx, "k", nil))
		if c := open(t, path); c.Set(ctx, "n", []byte("1")) != nil {
			t.Error("a new store cannot be used")
		}
	}
	before := content(t, path)
	if err := errors.Join(a.Close(), b.Close()); err != nil || content(t, path) != before {
		t.Errorf("closed: %v; another store's file was changed: %v", err, content(t, path) != before)
	}
}

func TestCloseLeavesAnotherFileAlone(t *testing.T) {
	path := tempPath(t)
	s := open(t, path, WithWorldSize(1))
	_ = os.Remove(path)
	if err := os.WriteFile(path, []byte("another user's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || content(t, path) != "another user's" {
		t.Errorf("close: %v", err)
	}
}

func TestCloseDoesNotHang(t *testing.T) {
	path := tempPath(t)
	s := open(t, path)
	s.closeTime = 50 * time.Millisecond
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error, 1)
	go func() { blocked <- s.Set(t.Context(), "k", nil) }()
	time.Sleep(10 * time.Millisecond)
	if err := s.Close(); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
	if err := <-blocked; !errors.Is(err, store.ErrClosed) {
		t.Errorf("the write that waited for the lock: %v", err)
	}
}

// TestOpenAndCloseStorm has handles come and go, so that the file is removed and made anew all the time. What a handle has
// written stays for as long as it is open.
func TestOpenAndCloseStorm(t *testing.T) {
	path := tempPath(t)
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for round := range 25 {
				s, err := Open(t.Context(), path, WithWorldSize(1), WithTimeout(30*time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				key, value := fmt.Sprint("key", worker), fmt.Sprint("round", round)
				if err := s.Set(t.Context(), key, []byte(value)); err != nil {
					t.Error(err)
				}
				if got, err := s.Get(t.Context(), key); string(got) != value || err != nil {
					t.Errorf("got %q, %v; want %q", got, err, value)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if exists(path) {
		t.Error("the last handle left the file")
	}
}

// TestKilledWriter kills processes that write large records, at any moment, and uses the file all the while.
func TestKilledWriter(t *testing.T) {
	if path := os.Getenv("COHORT_FILESTORE_WRITER"); path != "" {
		writeForEver(path)
	}
	path, ctx := tempPath(t), t.Context()
	s := open(t, path, WithTimeout(30*time.Second))
	for round := range 8 {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "COHORT_FILESTORE_WRITER="+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint("started/", cmd.Process.Pid)
		if _, err := s.Get(ctx, key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(round) * 1500 * time.Microsecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if n, err := s.Add(ctx, "rounds", 1); n != int64(round+1) || err != nil {
			t.Fatalf("round %d: %d, %v", round, n, err)
		}
		v, err := s.Get(ctx, "large")
		if err != nil || len(v) != 1<<20 || bytes.Count(v, v[:1]) != len(v) {
			t.Fatalf("round %d: %d bytes, %v", round, len(v), err)
		}
	}
	fresh := open(t, path)
	if n, err := fresh.Add(ctx, "rounds", 0); n != 8 || err != nil {
		t.Errorf("a new handle reads %d, %v", n, err)
	}
}

func writeForEver(path string) {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		panic(err)
	}
	for i := 0; ; i++ {
		if err := s.Set(ctx, "large", bytes.Repeat([]byte{byte(i)}, 1<<20)); err != nil {
			panic(err)
		}
		if i == 0 {
			_ = s.Set(ctx, fmt.Sprint("started/", os.Getpid()), nil)
		}
	}
}
