// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
)

const (
	firstLockPause   = 50 * time.Microsecond
	longestLockPause = 5 * time.Millisecond
)

// openFile opens the store's file and checks that it is one that can be locked and appended to.
func openFile(path string, create bool) (*os.File, error) {
	flags := os.O_RDWR | unix.O_NONBLOCK // a FIFO must not hold us up
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o644) //nolint:gosec // the path is the user's, the mode PyTorch's
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// lock takes the whole-file lock that PyTorch uses. It polls, because flock itself cannot be told to stop waiting.
func (s *Store) lock(ctx context.Context, f *os.File, how int) error {
	for pause := firstLockPause; ; pause = min(2*pause, longestLockPause) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return &fs.PathError{Op: "flock", Path: s.path, Err: err}
		}
		if err := s.pause(ctx, pause); err != nil {
			return err
		}
	}
}

func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// pause waits a little. It ends early, with an error, when the context does or the handle is closed.
func (s *Store) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return dist.Closed
	}
}

// appendAll writes records at the end of the locked file, whose size is given, and takes a part of it back if it cannot
// write all: half a record would stop every reader.
func (s *Store) appendAll(f *os.File, size int64, records []byte) error {
	_, err := s.writeAt(f, records, size)
	if err == nil {
		return nil
	}
	if cut := f.Truncate(size); cut != nil {
		return errors.Join(err, cut)
	}
	return err
}
