// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix || solaris || illumos || aix

package filestore

import (
	"errors"
	"os"
)

// supported is false on systems without flock: [Open] says so, and nothing below is ever called.
const supported = false

const nonblocking = 0

type lockMode int

const (
	shared lockMode = iota
	exclusive
)

func identify(*os.File) (id fileID, regular bool, err error) {
	return fileID{}, false, errors.ErrUnsupported
}

func look(string) (id fileID, size int64, err error)      { return fileID{}, 0, errors.ErrUnsupported }
func tryLock(*os.File, lockMode) (locked bool, err error) { return false, errors.ErrUnsupported }
func unlock(*os.File)                                     {}
func device(uint32, uint32) uint64                        { return 0 }

func checkOwner(*os.File, string, func(uint32) bool) error { return errors.ErrUnsupported }
