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
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const repository = "../../.."

// existing is a whole release, made by "make release", which is tested in place of one that the tests make.
var existing = flag.String("release.dir", "", "test the release in this `folder`")

// made is a release, and a second one for this machine.
type made struct {
	source        source
	platforms     []platform
	first, second string // folders; a release that was there has only the first
}

// emulated is a platform of the release whose programs run here with QEMU.
var emulated = platform{os: "linux", arch: "arm64"}.String()

var madeOnce = sync.OnceValues(func() (m made, err error) {
	if m.source, err = readSource(context.Background(), repository); err != nil {
		return m, err
	}
	if *existing != "" {
		m.first, m.platforms = *existing, platforms
		return m, nil
	}
	if temporary, err = os.MkdirTemp("", "cohort-release-test-"); err != nil {
		return m, err
	}
	m.first, m.second = filepath.Join(temporary, "first"), filepath.Join(temporary, "second")
	names := host().String()
	if names != emulated {
		names += "," + emulated
	}
	if m.platforms, err = choose(names); err != nil {
		return m, err
	}
	once := buildOnce()
	if err = run(context.Background(), repository, options{only: names, out: m.first, build: once}); err != nil {
		return m, err
	}
	return m, run(context.Background(), repository, options{only: host().String(), out: m.second, build: once})
})

// buildOnce keeps the binaries. What is not for this machine is built as "make cross" does it, in a fraction of the time.
func buildOnce() builder {
	built := map[string][]byte{}
	return func(ctx context.Context, s source, p platform) (binary []byte, err error) {
		if built[p.String()] != nil {
			return built[p.String()], nil
		}
		if p == host() {
			binary, err = build(ctx, s, p)
		} else {
			binary, err = s.compile(ctx, p, "-gcflags=all=-N -l")
		}
		built[p.String()] = binary
		return binary, err
	}
}

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
	var want, same []string
	for _, f := range files {
		one, err := os.ReadFile(filepath.Join(m.first, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if f.Name() == "SHA256SUMS" {
			continue
		}
		want = append(want, fmt.Sprintf("%x  %s\n", sha256.Sum256(one), f.Name()))
		two, err := os.ReadFile(filepath.Join(m.second, f.Name()))
		if m.second == "" || errors.Is(err, fs.ErrNotExist) || strings.HasSuffix(f.Name(), ".oci.tar") {
			continue // for other platforms, or with them
		}
		if err != nil || !bytes.Equal(one, two) {
			t.Errorf("%s differs: %v", f.Name(), err)
		}
		same = append(same, f.Name())
	}
	_, got := m.file(t, "SHA256SUMS")
	if text := strings.Join(want, ""); text != string(got) {
		t.Errorf("SHA256SUMS is\n%snot\n%s", got, text)
	}
	number := 2 // the sdist and the image
	for _, p := range m.platforms {
		number += 2 // the archive and its modules
		if p.wheelTag != "" {
			number++
		}
	}
	if len(want) != number || m.second != "" && len(same) != 4 {
		t.Errorf("files: %q; twice: %q", want, same)
	}
}

// TestArchive: the archives have everything. Programs that this machine or QEMU can run need nothing but the kernel.
func TestArchive(t *testing.T) {
	t.Parallel()
	m := release(t)
	for _, p := range m.platforms {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			_, packed := m.file(t, m.source.stem(p)+".tar.gz")
			entries := untar(t, gunzip(t, packed))
			for name, mode := range map[string]fs.FileMode{
				p.exe(): 0o755, "LICENSE": 0o644, "README.md": 0o644, "completions/cohort.bash": 0o644, "completions/cohort.zsh": 0o644,
				"completions/cohort.fish": 0o644, "completions/cohort.powershell": 0o644,
				"man/man1/cohort.1": 0o644, "man/man1/cohort-run.1": 0o644,
			} {
				if e := entries[name]; e.mode != mode || len(e.data) == 0 {
					t.Errorf("%s: mode %v, %d bytes", name, e.mode, len(e.data))
				}
			}
			if page := entries["man/man1/cohort.1"].data; !bytes.Contains(page, []byte("cohort v"+m.source.version)) {
				t.Errorf("the manual page does not name the version:\n%.200s", page)
			}
			m.checkProgram(t, p, entries[p.exe()].data)
			m.checkModules(t, p, entries[p.exe()].data)
		})
	}
}

// checkModules: the list of modules is that of this binary.
func (m made) checkModules(t *testing.T, p platform, binary []byte) {
	t.Helper()
	_, text := m.file(t, m.source.stem(p)+".cdx.json")
	want, err := sbom("v"+m.source.version, p.exe(), binary)
	if err != nil || !bytes.Equal(text, want) {
		t.Errorf("the list of modules is of another binary: %v", err)
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
