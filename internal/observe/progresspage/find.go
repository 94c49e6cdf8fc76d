// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package progresspage

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

const (
	// mostFiles is how many open files of a process are looked at.
	mostFiles = 1 << 14
	// attempts is how often a page is read that changes while it is read.
	attempts = 4
)

// Find reads the page of a process below the folder proc. own is the number that the process has for itself, which is another one in a
// container. It reports false if there is none, or if it may not be read.
func Find(proc string, pid, own int) (Page, bool) {
	folder := filepath.Join(proc, strconv.Itoa(pid), "fd")
	dir, err := os.Open(folder) //nolint:gosec // a folder of the kernel
	if err != nil {
		return Page{}, false
	}
	names, _ := dir.Readdirnames(mostFiles)
	_ = dir.Close()
	for _, name := range names {
		link, err := os.Readlink(filepath.Join(folder, name))
		if err != nil || link != "/memfd:"+memfdName+" (deleted)" {
			continue
		}
		if p, err := read(filepath.Join(folder, name)); err == nil && p.PID == own {
			return p, true
		}
	}
	return Page{}, false
}

// read reads a page until it does not change meanwhile.
func read(name string) (Page, error) {
	f, err := os.Open(name) //nolint:gosec // a memory file of the process that is looked at
	if err != nil {
		return Page{}, err
	}
	defer func() { _ = f.Close() }()
	var before, now [pageSize + 1]byte
	for n := 0; ; n++ {
		got, err := f.ReadAt(now[:], 0)
		if err != nil && err != io.EOF {
			return Page{}, err
		}
		if n >= attempts || n > 0 && bytes.Equal(before[:], now[:]) {
			return decode(now[:got])
		}
		before = now
	}
}
