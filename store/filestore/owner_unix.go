// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !solaris && !illumos && !aix

package filestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/peeruid"
)

// checkOwner refuses the open file that path leads to if another user has put it there: ranks believe what is in it, and write to where a
// link leads. The file of another user is accepted in a folder in which only allowed users can make files. One of them made it then, on
// a file server that gives the files of root to another user, for example.
func checkOwner(f *os.File, path string, allowed func(uint32) bool) error {
	var file, named unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &file); err != nil {
		return err
	}
	if err := unix.Lstat(path, &named); err != nil {
		return ignoreGone(err)
	}
	if named.Mode&unix.S_IFMT == unix.S_IFLNK && !allowed(named.Uid) && !private(filepath.Dir(path), allowed) {
		return refusal("is a link that belongs", named.Uid)
	}
	if allowed(file.Uid) {
		return nil
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ignoreGone(err)
	}
	if !private(filepath.Dir(target), allowed) {
		return refusal("belongs", file.Uid)
	}
	return nil
}

// ignoreGone leaves out that a file is not there any more: then it is not used.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// private reports whether only users who are allowed can make files in a folder.
func private(folder string, allowed func(uint32) bool) bool {
	var stat unix.Stat_t
	return unix.Stat(folder, &stat) == nil && allowed(stat.Uid) && stat.Mode&(unix.S_IWGRP|unix.S_IWOTH) == 0
}

func refusal(what string, uid uint32) error {
	return fmt.Errorf("it %s to user %d, who could act as a rank of this job; remove it or use a folder of your own, or allow that user "+
		"with %s=%d in the environment", what, uid, peeruid.Env, uid)
}
