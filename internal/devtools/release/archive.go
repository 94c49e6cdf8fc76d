// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive; a folder if the name ends with a slash.
type entry struct {
	name string
	mode fs.FileMode
	data []byte
}

// tarball writes entries sorted by name, all of one time and of user 0.
func tarball(when time.Time, entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range sorted {
		h := &tar.Header{Name: e.name, Typeflag: tar.TypeReg, Mode: int64(e.mode.Perm()), Size: int64(len(e.data)), ModTime: when}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if e.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// gzipped compresses without a name and a time.
func gzipped(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.Bytes(), err
}

// stem begins the names of a platform's files.
func (s source) stem(p platform) string {
	return fmt.Sprintf("cohort_%s_%s_%s", s.version, p.os, p.arch)
}

// archive holds the binary, the licence and what goes beside an installed program.
func (s source) archive(p platform, binary []byte, extra []entry) (artifact, error) {
	entries := append(slices.Clone(extra), entry{p.exe(), 0o755, binary})
	plain, err := tarball(s.when, entries)
	if err != nil {
		return artifact{}, err
	}
	data, err := gzipped(plain)
	return artifact{s.stem(p) + ".tar.gz", data}, err
}

// shells are those that the command writes completions for.
var shells = []string{"bash", "fish", "powershell", "zsh"}

// documents returns the licence, the README, the completions and the manual pages. The binary for this machine writes them.
func (s source) documents(ctx context.Context, binary []byte) ([]entry, error) {
	var all []entry
	for _, name := range []string{"LICENSE", "README.md"} {
		data, err := s.read(name)
		if err != nil {
			return nil, err
		}
		all = append(all, entry{name, 0o644, data})
	}
	dir, err := os.MkdirTemp("", "cohort-release-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program, pages := filepath.Join(dir, "cohort"), filepath.Join(dir, "man1")
	if err = os.WriteFile(program, binary, 0o700); err != nil { //nolint:gosec // it is run
		return nil, err
	}
	for _, shell := range shells {
		text, failed := exec.CommandContext(ctx, program, "completion", shell).Output() //nolint:gosec // our own program
		if failed != nil {
			return nil, fmt.Errorf("completions for %s: %w", shell, failed)
		}
		all = append(all, entry{"completions/cohort." + shell, 0o644, text})
	}
	if out, failed := exec.CommandContext(ctx, program, "man", pages).CombinedOutput(); failed != nil { //nolint:gosec // our own program
		return nil, fmt.Errorf("manual pages: %w\n%s", failed, out)
	}
	files, err := os.ReadDir(pages)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(pages, f.Name())) //nolint:gosec // just written
		if err != nil {
			return nil, err
		}
		all = append(all, entry{path.Join("man", "man1", f.Name()), 0o644, text})
	}
	return all, nil
}
