// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const repository = "../../.."

// made is a release for this machine, made twice in this process.
type made struct {
	source        source
	first, second string // folders
}

var madeOnce = sync.OnceValues(func() (made, error) {
	var m made
	dir, err := os.MkdirTemp("", "cohort-release-test-")
	if err != nil {
		return m, err
	}
	temporary = dir
	m.first, m.second = filepath.Join(dir, "first"), filepath.Join(dir, "second")
	if m.source, err = readSource(context.Background(), repository); err != nil {
		return m, err
	}
	for _, out := range []string{m.first, m.second} {
		if err := run(context.Background(), repository, options{only: host().String(), out: out}); err != nil {
			return m, err
		}
	}
	return m, nil
})

// temporary is where madeOnce has written.
var temporary string

func TestMain(m *testing.M) {
	code := m.Run()
	if temporary != "" {
		_ = os.RemoveAll(temporary)
	}
	os.Exit(code)
}

// release makes the release once for all tests.
func release(t *testing.T) made {
	t.Helper()
	if _, err := choose(host().String()); err != nil {
		t.Skip(err)
	}
	m, err := madeOnce()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// file returns the one file of the release whose name matches.
func (m made) file(t *testing.T, pattern string) (name string, data []byte) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(m.first, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s matches %v, %v", pattern, found, err)
	}
	if data, err = os.ReadFile(found[0]); err != nil {
		t.Fatal(err)
	}
	return found[0], data
}

func untar(t *testing.T, data []byte) map[string]entry {
	t.Helper()
	all := map[string]entry{}
	var names []string
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d:%d %q", h.Name, h.Uid, h.Gid, h.Uname)
		}
		names = append(names, h.Name)
		all[h.Name] = entry{h.Name, h.FileInfo().Mode(), text}
	}
	if !slices.IsSorted(names) {
		t.Errorf("not sorted: %v", names)
	}
	return all
}

func gunzip(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// TestSameBytes: two releases of the same sources are equal, and the list of checksums is right and has all files.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	m := release(t)
	files, err := os.ReadDir(m.first)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range files {
		one, err1 := os.ReadFile(filepath.Join(m.first, f.Name()))
		two, err2 := os.ReadFile(filepath.Join(m.second, f.Name()))
		if err1 != nil || err2 != nil || !bytes.Equal(one, two) {
			t.Errorf("%s differs: %v %v", f.Name(), err1, err2)
		}
		if f.Name() != "SHA256SUMS" {
			want = append(want, fmt.Sprintf("%x  %s\n", sha256.Sum256(one), f.Name()))
		}
	}
	_, got := m.file(t, "SHA256SUMS")
	if text := strings.Join(want, ""); text != string(got) {
		t.Errorf("SHA256SUMS is\n%snot\n%s", got, text)
	}
	if host().wheelTag != "" && host().image && len(want) != 5 { // archive, SBOM, wheel, sdist, image
		t.Errorf("files: %q", want)
	}
}

// TestArchive: the archive has everything, and its binary needs nothing but the kernel.
func TestArchive(t *testing.T) {
	t.Parallel()
	m := release(t)
	_, packed := m.file(t, m.source.stem(host())+".tar.gz")
	entries := untar(t, gunzip(t, packed))
	for name, mode := range map[string]fs.FileMode{
		host().exe(): 0o755, "LICENSE": 0o644, "README.md": 0o644, "completions/cohort.bash": 0o644, "completions/cohort.zsh": 0o644,
		"completions/cohort.fish": 0o644, "completions/cohort.powershell": 0o644,
		"man/man1/cohort.1": 0o644, "man/man1/cohort-run.1": 0o644,
	} {
		if e := entries[name]; e.mode != mode || len(e.data) == 0 {
			t.Errorf("%s: mode %v, %d bytes", name, e.mode, len(e.data))
		}
	}
	root := t.TempDir()
	program := filepath.Join(root, host().exe())
	if err := os.WriteFile(program, entries[host().exe()].data, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "version")
	if !inRoot(cmd, root) {
		t.Log("without an empty root, which needs the rights of root on Linux")
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "cohort v"+m.source.version+", commit "+m.source.commit) {
		t.Errorf("cohort version: %v\n%s", err, out)
	}
	if page := entries["man/man1/cohort.1"].data; !bytes.Contains(page, []byte("cohort v"+m.source.version)) {
		t.Errorf("the manual page does not name the version:\n%.200s", page)
	}
}

// TestOtherPlatforms: the names of the files, without building them.
func TestOtherPlatforms(t *testing.T) {
	t.Parallel()
	src := source{version: "1.2.3"}
	var names []string
	for _, p := range platforms {
		names = append(names, src.stem(p)+" "+p.exe())
	}
	want := []string{
		"cohort_1.2.3_linux_amd64 cohort", "cohort_1.2.3_linux_arm64 cohort", "cohort_1.2.3_linux_386 cohort",
		"cohort_1.2.3_darwin_amd64 cohort", "cohort_1.2.3_darwin_arm64 cohort", "cohort_1.2.3_windows_amd64 cohort.exe",
	}
	if !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	if _, err := choose("plan9/amd64"); err == nil {
		t.Error("there is a release for Plan 9")
	}
	if _, err := src.wheel(platforms[len(platforms)-1], nil); err == nil {
		t.Error("there is a wheel for Windows")
	}
}
