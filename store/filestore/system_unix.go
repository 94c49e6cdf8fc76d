// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !solaris && !illumos && !aix

package filestore

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const supported = true

// nonblocking keeps the opening of a FIFO from waiting.
const nonblocking = unix.O_NONBLOCK

// lockMode is shared or exclusive.
type lockMode int

const (
	shared    = lockMode(unix.LOCK_SH)
	exclusive = lockMode(unix.LOCK_EX)
)

func idOf(stat *unix.Stat_t) fileID {
	return fileID{uint64(stat.Dev), stat.Ino} //nolint:unconvert // not 64 bits on every system
}

// identify returns which file is open, and whether it is a regular one.
func identify(f *os.File) (id fileID, regular bool, err error) {
	var stat unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &stat)
	return idOf(&stat), stat.Mode&unix.S_IFMT == unix.S_IFREG, err
}

// look returns to which file a path leads, and its size. It is what a waiting handle does all the time.
func look(path string) (id fileID, size int64, err error) {
	var stat unix.Stat_t
	for {
		err = unix.Stat(path, &stat)
		if !errors.Is(err, unix.EINTR) {
			return idOf(&stat), stat.Size, err
		}
	}
}

// tryLock takes the lock if no other process has it.
func tryLock(f *os.File, how lockMode) (locked bool, err error) {
	err = unix.Flock(int(f.Fd()), int(how)|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return err == nil, err
}

func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// device is the number of a device as idOf returns it.
func device(major, minor uint32) uint64 { return unix.Mkdev(major, minor) }
