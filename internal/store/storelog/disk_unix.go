// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package storelog

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

func syncDir(dir string) error {
	f, err := os.Open(dir) //nolint:gosec // the user's folder
	if err != nil {
		return err
	}
	err = f.Sync()
	_ = f.Close()
	return err
}

func diskFull(error) bool { return false }
