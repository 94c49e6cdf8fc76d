// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The files of a folder, besides the segments, the snapshots and the lock.
const (
	identityName = "identity"
	reserveName  = "reserve"      // a file of zeros that will be a segment
	largeName    = "large.tmp"    // one that is about to become one
	newName      = "new.tmp"      // one that is being made
	savingName   = "snapshot.tmp" // a snapshot that is being written

	segmentSuffix  = ".log"
	snapshotSuffix = ".snapshot"
)

func segmentName(first LSN) string    { return fmt.Sprintf("%020d%s", first, segmentSuffix) }
func snapshotName(through LSN) string { return fmt.Sprintf("%020d%s", through, snapshotSuffix) }

// folder is a folder on a disk.
type folder struct {
	disk Disk
	dir  string
}

func (f folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f folder) open(name string) (File, error)  { return f.disk.Open(f.path(name)) }
func (f folder) rename(from, to string) error    { return f.disk.Rename(f.path(from), f.path(to)) }
func (f folder) remove(name string) error        { return f.disk.Remove(f.path(name)) }
func (f folder) sync() error                     { return f.disk.SyncDir(f.dir) }
func (f folder) temporary(name string) bool      { return strings.HasSuffix(name, ".tmp") }
func (f folder) list() (names []string, e error) { return f.disk.List(f.dir) }

// create makes a file of zeros. It has its name only when it is complete.
func (f folder) create(name string, size int64) error {
	_ = f.remove(newName)
	file, err := f.disk.Create(f.path(newName), size)
	if err != nil {
		return err
	}
	if err = errors.Join(file.Sync(), file.Close()); err == nil {
		err = f.rename(newName, name)
	}
	if err != nil {
		_ = f.remove(newName)
	}
	return err
}

// write changes a part of a file, and makes it durable.
func (f folder) write(name string, b []byte, at int64) error {
	file, err := f.open(name)
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(b, at); err == nil {
		if err = file.Sync(); err != nil {
			err = fmt.Errorf("%w: %w", errSync, err)
		}
	}
	return errors.Join(err, file.Close())
}

// errSync tells a failed sync, which is final, from a write on a full disk.
var errSync = errors.New("sync")

// read returns a whole file; buffer is used if it is large enough.
func (f folder) read(name string, buffer []byte) ([]byte, error) {
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	buffer = slices.Grow(buffer[:0], int(size))[:size]
	if n, err := file.ReadAt(buffer, 0); n < len(buffer) {
		return nil, fmt.Errorf("%s: read %d of %d bytes: %w", name, n, size, err)
	}
	return buffer, nil
}

// numbered returns the numbers of the files with a suffix, the smallest first.
func numbered(names []string, suffix string) []LSN {
	var found []LSN
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, suffix)
		if n, err := strconv.ParseUint(digits, 10, 64); ok && err == nil && len(digits) == 20 {
			found = append(found, LSN(n))
		}
	}
	slices.Sort(found)
	return found
}
