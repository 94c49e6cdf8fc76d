// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storejournal

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// unlimited are limits for a machine that serves nothing.
var unlimited = storecore.Limits{
	Limits: wire.Limits{Key: math.MaxInt32, Value: math.MaxInt32, Keys: math.MaxInt32, Request: math.MaxInt32},
	Memory: math.MaxInt64, Output: math.MaxInt32, Waits: math.MaxInt32,
}

// Restored says what Restore made.
type Restored struct {
	Keys     int // and queues
	Identity storecore.Identity
}

// Restore makes a folder of a backup. It must not exist, or be empty. The store gets an identity of its own unless it is to be taken for
// the one of the backup: clients of that one then go on with what the backup holds. The folder is made beside and renamed, so that
// there is never a part of one.
func Restore(dir string, backup io.Reader, sameIdentity bool) (Restored, error) {
	const op = "tcpstore: restore"
	b, err := openBackup(backup)
	if err != nil {
		return Restored{}, err
	}
	if err = mustBeEmpty(dir); err != nil {
		return Restored{}, err
	}
	made := dir + ".restoring"
	if _, err = os.Lstat(made); err == nil {
		return Restored{}, cohort.Newf(op, cohort.AlreadyExists,
			"%s is there: another restore makes it, or one that did not end has left it; then remove it", made)
	}
	want := b.identity
	if !sameIdentity {
		_, _ = rand.Read(want[:]) // never fails
	}
	keys, err := restoreInto(made, b, want)
	if err != nil {
		return Restored{}, errors.Join(err, os.RemoveAll(made))
	}
	if err = moveInto(made, dir); err != nil {
		return Restored{}, err
	}
	return Restored{keys, want}, nil
}

func mustBeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return cohort.Newf("tcpstore: restore", cohort.AlreadyExists, "%s is not empty: name a folder that does not exist yet", dir)
	}
	return os.Remove(dir)
}

// restoreInto makes a folder of an image.
func restoreInto(dir string, image io.Reader, identity storecore.Identity) (keys int, err error) {
	m := storecore.New(storecore.Config{Limits: unlimited, Logged: true})
	if err = m.Restore(0, image); err != nil {
		return 0, err
	}
	folder, err := storelog.Open(dir, Options(storecore.Identity{}), storelog.Replay{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	m.Become(storecore.Identity(folder.Identity()), identity)
	m.ProposeRestart() // a snapshot covers a record
	for _, k := range m.Commands() {
		at, err := folder.Write([]storelog.Record{{Kind: vitalRecord, Data: k.Data}})
		if err != nil {
			return 0, err
		}
		m.Commit([]storecore.Entry{{Index: uint64(at), Data: k.Data, Local: k}})
	}
	return m.Keys(), saveAll(folder, m)
}

// saveAll stores what a machine holds that serves nothing.
func saveAll(folder *storelog.Log, m *storecore.Machine) error {
	i := m.BeginImage()
	defer i.End()
	return folder.Snapshot(storelog.LSN(i.Index), func(w io.Writer) error { return save(w, parts(i)) })
}

// parts returns the parts of the image of a machine that serves nothing.
func parts(i *storecore.Image) func() ([]byte, bool, error) {
	return func() ([]byte, bool, error) {
		part, more := i.Next()
		return part, more, nil
	}
}

// moveInto gives a folder its name.
func moveInto(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(filepath.Clean(to)))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// BackUp writes a backup of a folder that no server uses, and returns its size.
func BackUp(dir string, w io.Writer) (size int64, keys int, err error) {
	if _, err = os.Stat(dir); err != nil {
		return 0, 0, cohort.Newf("tcpstore: backup", cohort.NotFound, "%s holds no store: %w", dir, err)
	}
	j, m, err := Open(dir, storecore.Config{Limits: unlimited}, Options(storecore.Identity{}))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, j.log.Close()) }()
	b := NewBackup(w, m.Identity())
	next := parts(m.BeginImage())
	for more := true; more; {
		var part []byte
		part, more, _ = next()
		if err = b.Add(part); err != nil {
			return b.Size(), 0, err
		}
	}
	err = b.End()
	return b.Size(), m.Keys(), err
}
