// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package bundle keeps the evidence of failed runs: a folder of bounded size for each.
package bundle

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxBytes bounds the files of one bundle together.
const maxBytes = 64 << 20

// Root is the folder for bundles where the user has named none, "" without a home folder.
func Root() string {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "cohort", "evidence")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "state", "cohort", "evidence")
}

// Bundle is a folder that is written.
type Bundle struct {
	dir  string
	left int
	err  error
}

// Create makes the bundle of a run.
func Create(root, run string, started time.Time) *Bundle {
	b := &Bundle{dir: filepath.Join(root, started.UTC().Format("20060102T150405Z")+"_"+run), left: maxBytes}
	b.err = os.MkdirAll(b.dir, 0o700)
	return b
}

// Write writes a file that only its owner can read, and reports whether it did. One that is empty, or for which no space is left, is
// left out.
func (b *Bundle) Write(name string, data []byte) bool {
	if b.err != nil || len(data) == 0 || len(data) > b.left {
		return false
	}
	b.left -= len(data)
	b.err = WriteWhole(filepath.Join(b.dir, name), data)
	return b.err == nil
}

// WriteWhole writes a file that only its owner can read. What cannot be written whole is not left behind: half a file, or an empty one,
// would be taken for a whole one. A device or a link is never removed.
func WriteWhole(name string, data []byte) error {
	//nolint:gosec // the user's own file, or one in a folder of the launcher's
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err != nil {
		_ = f.Truncate(0) // for a file that cannot be removed
	}
	if err = cmp.Or(err, f.Close()); err == nil {
		return nil
	}
	if info, gone := os.Lstat(name); gone == nil && info.Mode().IsRegular() {
		_ = os.Remove(name)
	}
	return err
}

// Keep copies the files of a folder whose names begin with a prefix, as far as there is room.
func (b *Bundle) Keep(dir, prefix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), prefix) || !info.Mode().IsRegular() || info.Size() > int64(b.left) {
			continue
		}
		if data, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil { //nolint:gosec // files of the run
			b.Write(e.Name(), data)
		}
	}
}

// Close returns the folder, and why it could not be written. One without anything in it is removed then.
func (b *Bundle) Close() (string, error) {
	if b.err != nil {
		_ = os.Remove(b.dir)
	}
	return b.dir, b.err
}

// Prune removes all but the newest bundles of a folder. Their names begin with their time.
func Prune(root string, keep int) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return
	}
	var bundles []string
	for _, e := range entries {
		if len(e.Name()) > 17 && e.IsDir() && e.Name()[8] == 'T' && e.Name()[15] == 'Z' && e.Name()[16] == '_' {
			bundles = append(bundles, e.Name())
		}
	}
	slices.Sort(bundles)
	for _, name := range bundles[:max(0, len(bundles)-keep)] {
		_ = os.RemoveAll(filepath.Join(root, name))
	}
}
