// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

const (
	// maxRecord is the longest record that the kernel gives, and maxRecords bounds how often one is asked for.
	maxRecord, maxRecords = 8192, 1 << 16
)

// ReadKernelLog returns the records that the kernel's log holds, nil if they may not be read. name is "/dev/kmsg" but in tests.
func ReadKernelLog(name string) []string {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	return logRecords(func(buf []byte) (int, error) { return unix.Read(fd, buf) })
}

// logRecords reads a record each time, until there are no more.
func logRecords(read func([]byte) (int, error)) []string {
	var all []string
	buf := make([]byte, maxRecord)
	for range maxRecords {
		n, err := read(buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EPIPE): // it was overwritten: the next one comes
			continue
		case err != nil || n <= 0:
			return all
		}
		all = append(all, string(buf[:n]))
	}
	return all
}

// sinceBoot returns the kernel's time, as it is in the records; 0: not known.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

const (
	// maxLocks bounds the lines of the kernel's list of locks, maxOpen the open files that are looked at for one that has a lock, and
	// maxAbove the ancestors of a process among which a rank is looked for.
	maxLocks, maxOpen, maxAbove = 1 << 14, 1 << 14, 16
)

// fileLock is a line of the kernel's list of locks.
type fileLock struct {
	number string // a lock and those who wait for it have the same
	waits  bool
	kind   string // FLOCK, POSIX, OFDLCK
	pid    int    // -1: not known
	file   string // device and inode
}

// parseLock reads "1: -> FLOCK  ADVISORY  WRITE 123 fd:01:456 0 EOF".
func parseLock(line string) (fileLock, bool) {
	f := strings.Fields(line)
	l := fileLock{}
	for len(f) > 1 && f[1] == "->" { // several: it waits behind another who waits
		l.waits = true
		f = append(f[:1:1], f[2:]...)
	}
	if len(f) < 6 {
		return l, false
	}
	pid, err := strconv.Atoi(f[4])
	l.number, l.kind, l.pid, l.file = f[0], f[1], pid, f[5]
	return l, err == nil
}

// blocks finds the lock that a process waits for in the kernel's list.
func blocks(list string, pid int) (fileLock, bool) {
	var locks []fileLock
	for line := range strings.Lines(list) {
		if l, ok := parseLock(line); ok && len(locks) < maxLocks {
			locks = append(locks, l)
		}
	}
	for _, waiter := range locks {
		if !waiter.waits || waiter.pid != pid {
			continue
		}
		for _, l := range locks {
			if !l.waits && l.number == waiter.number {
				return l, true
			}
		}
	}
	return fileLock{}, false
}

// lockHolder returns the process that holds the file lock that a process waits for, or nil.
func lockHolder(proc string, pid int, ranks map[int]int) *verdict.Holder {
	list, err := os.ReadFile(filepath.Join(proc, "locks")) //nolint:gosec // a file of the kernel
	if err != nil {
		return nil
	}
	l, found := blocks(string(list), pid)
	if !found {
		return nil
	}
	if _, state := stat(proc, l.pid); l.pid <= 0 || state == "" || state == "Z" {
		// Who took the lock is gone or not told. The lock belongs to the open file, which a child may have inherited.
		if l.pid = opened(proc, l); l.pid == 0 {
			return nil
		}
	}
	comm, _ := os.ReadFile(filepath.Join(proc, strconv.Itoa(l.pid), "comm")) //nolint:gosec // a file of the kernel
	return &verdict.Holder{PID: l.pid, Command: strings.TrimSpace(string(comm)), Rank: rankAbove(proc, l.pid, ranks)}
}

// opened returns a process that has the open file of a lock; 0: none that this user may see.
func opened(proc string, l fileLock) int {
	names, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fdinfo", "*"))
	for _, name := range names[:min(len(names), maxOpen)] {
		info, err := os.ReadFile(name) //nolint:gosec // a file of the kernel
		if err != nil || !strings.Contains(string(info), "lock:") {
			continue
		}
		for line := range strings.Lines(string(info)) {
			text, isLock := strings.CutPrefix(line, "lock:")
			other, ok := parseLock(text)
			if !isLock || !ok || other.kind != l.kind || other.file != l.file || other.waits {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(name))))
			return pid
		}
	}
	return 0
}

// rankAbove returns the rank that a process is, or that has started it; -1: none.
func rankAbove(proc string, pid int, ranks map[int]int) int {
	for range maxAbove {
		if rank, found := ranks[pid]; found {
			return rank
		}
		if pid, _ = stat(proc, pid); pid <= 1 {
			break
		}
	}
	return -1
}
