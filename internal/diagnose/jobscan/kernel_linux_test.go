// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRecords: records that were overwritten are left out, and a log that is overwritten faster than it is read comes to an end.
func TestRecords(t *testing.T) {
	t.Parallel()
	answers := []string{"a", "", "b"}
	got := logRecords(func(buf []byte) (int, error) {
		if len(answers) == 0 {
			return 0, unix.EAGAIN
		}
		answer := answers[0]
		if answers = answers[1:]; answer == "" {
			return 0, unix.EPIPE
		}
		return copy(buf, answer), nil
	})
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
	asked := 0
	if got := logRecords(func([]byte) (int, error) {
		if asked++; asked > 2*maxRecords {
			return 0, unix.EAGAIN
		}
		return 0, unix.EPIPE
	}); got != nil || asked != maxRecords {
		t.Errorf("%d records of %d", len(got), asked)
	}
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	const list = `1: POSIX  ADVISORY  WRITE 811 fe:00:263 0 EOF
2: FLOCK  ADVISORY  WRITE 900 fe:00:264 0 EOF
2: -> FLOCK  ADVISORY  WRITE 901 fe:00:264 0 EOF
2: ->  -> FLOCK  ADVISORY  READ 905 fe:00:264 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fe:00:265 0 EOF
3: -> OFDLCK ADVISORY  READ 903 fe:00:265 0 EOF
4: nonsense
`
	for pid, want := range map[int]int{901: 900, 905: 900, 903: -1, 811: 0, 900: 0} {
		if l, found := blocks(list, pid); l.pid != want || found != (want != 0) {
			t.Errorf("process %d waits for %+v (%v), want that of %d", pid, l, found, want)
		}
	}
}

// TestLockHolder: the process that holds a lock is found by the kernel's list, and by its open files if the list does not say it.
func TestLockHolder(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	held, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		waits, failed := os.Open(name)
		if failed == nil {
			failed = syscall.Flock(int(waits.Fd()), syscall.LOCK_EX)
			_ = waits.Close()
		}
		done <- failed
	}()
	ranks := map[int]int{os.Getpid(): 3}
	h := lockHolder("/proc", os.Getpid(), ranks)
	// until it waits
	for limit := time.Now().Add(time.Minute); h == nil && len(done) == 0 && time.Now().Before(limit); time.Sleep(time.Millisecond) {
		h = lockHolder("/proc", os.Getpid(), ranks)
	}
	if h == nil || h.PID != os.Getpid() || h.Rank != 3 || h.Command == "" {
		t.Errorf("the lock is held by %+v", h)
	}
	list, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	l, found := blocks(string(list), os.Getpid())
	if pid := opened("/proc", l); !found || pid != os.Getpid() {
		t.Errorf("the open file of %+v (%v) is that of process %d", l, found, pid)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if rank := rankAbove("/proc", os.Getpid(), map[int]int{os.Getppid(): 5}); rank != 5 {
		t.Errorf("a child of rank 5 belongs to rank %d", rank)
	}
	if _, ok := parseLock(strings.Repeat("x ", 3)); ok {
		t.Error("nonsense was read as a lock")
	}
}
