// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// lockName is the file that is locked. It stays: to remove it would let two processes lock two files.
const lockName = "lock"

// osDisk is the disks of this machine.
type osDisk struct{}

func (osDisk) MakeDir(dir string) error { return os.MkdirAll(dir, 0o700) }

func (osDisk) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (osDisk) Lock(dir, text string) (io.Closer, string, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the user's folder
	if err != nil {
		return nil, "", err
	}
	if err := lockFile(f); err != nil {
		holder := make([]byte, 200)
		n, _ := f.ReadAt(holder, 0)
		_ = f.Close()
		return nil, printable.Line(strings.TrimSpace(string(holder[:n]))), err
	}
	// The text helps those who find the folder locked; on a full disk there is none.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(text+"\n"), 0)
	}
	return f, "", nil
}

func (osDisk) Create(name string, size int64) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the user's folder
	if err != nil {
		return nil, err
	}
	if err = fill(f, size); err != nil {
		_ = f.Close()
		_ = os.Remove(name)
		return nil, err
	}
	return osFile{f}, nil
}

// fill writes zeros. To write them makes later syncs cheaper than space that the file system only promises: it need not
// note which blocks have been written.
func fill(f *os.File, size int64) error {
	if size > 0 {
		if err := allocate(f, size); err != nil {
			return err // before half of the remaining room is filled for nothing
		}
	}
	for at := int64(0); at < size; {
		n, err := f.WriteAt(zeros[:min(size-at, int64(len(zeros)))], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

func (osDisk) Open(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0) //nolint:gosec // the user's folder
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osDisk) Rename(from, to string) error { return os.Rename(from, to) }
func (osDisk) Remove(name string) error     { return os.Remove(name) }
func (osDisk) SyncDir(dir string) error     { return syncDir(dir) }

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error { return syncData(f.File) }

// noRoom reports whether a write failed because of the disk's, the user's or the process's limit.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) || diskFull(err)
}
