// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes the data durable, and of the file's description only what is needed to read it.
func syncData(f *os.File) error {
	return uninterrupted("fdatasync", f, unix.Fdatasync)
}

// allocate asks for the room at once. A file system that cannot promise room is asked when the bytes are written.
func allocate(f *os.File, size int64) error {
	err := uninterrupted("fallocate", f, func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

func uninterrupted(op string, f *os.File, call func(fd int) error) error {
	for {
		err := call(int(f.Fd()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return &os.PathError{Op: op, Path: f.Name(), Err: err}
		}
	}
}
