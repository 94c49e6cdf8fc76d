// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sdist packs the files of the repository with what git would say about them: "pip install" of it builds the same wheel, with Go.
func (s source) sdist(ctx context.Context) (artifact, error) {
	if _, err := os.Stat(filepath.Join(s.root, recordFile)); err == nil {
		return artifact{}, errors.New("this is a source distribution already: make it from a checkout with git")
	}
	list, err := s.git(ctx, "ls-files", "-z")
	if err != nil {
		return artifact{}, err
	}
	prefix := fmt.Sprintf("%s-%s/", pythonPackage, s.version)
	about, err := s.about()
	if err != nil {
		return artifact{}, err
	}
	entries := []entry{{prefix + "PKG-INFO", 0o644, about}, {prefix + recordFile, 0o644, s.record()}}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		if leftOut(name) {
			continue
		}
		e, failed := s.entryOf(prefix, name)
		if errors.Is(failed, fs.ErrNotExist) {
			continue // removed, not yet committed
		}
		if failed != nil {
			return artifact{}, failed
		}
		entries = append(entries, e)
	}
	plain, err := tarball(s.when, entries)
	if err != nil {
		return artifact{}, err
	}
	data, err := gzipped(plain)
	return artifact{strings.TrimSuffix(prefix, "/") + ".tar.gz", data}, err
}

// leftOut: what no build needs and what makes up most of the size.
func leftOut(name string) bool {
	for _, dir := range []string{".github/", ".ci/", "tools/"} {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/testdata/")
}

// entryOf reads one file; of its mode only whether it can be executed is kept, as in git.
func (s source) entryOf(prefix, name string) (entry, error) {
	full := filepath.Join(s.root, filepath.FromSlash(name))
	info, err := os.Stat(full)
	if err != nil {
		return entry{}, err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	data, err := os.ReadFile(full) //nolint:gosec // a file of the repository
	return entry{prefix + name, mode, data}, err
}
