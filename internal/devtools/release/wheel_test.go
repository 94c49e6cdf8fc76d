// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

const mostWheel = 12 << 20

func unzip(t *testing.T, data []byte) (names []string, entries map[string]entry) {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	entries = map[string]entry{}
	for _, f := range r.File {
		if f.Flags&8 != 0 {
			t.Errorf("%s: the size stands behind the data", f.Name)
		}
		open, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(open)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, f.Name)
		entries[f.Name] = entry{f.Name, f.Mode(), text}
	}
	return names, entries
}

// TestWheel: names, modes, hashes and size of the wheels.
func TestWheel(t *testing.T) {
	t.Parallel()
	m := release(t)
	for _, p := range m.platforms {
		if p.wheelTag != "" {
			t.Run(p.String(), func(t *testing.T) {
				t.Parallel()
				m.checkWheel(t, p)
			})
		}
	}
}

func (m made) checkWheel(t *testing.T, p platform) {
	t.Helper()
	_, data := m.file(t, m.wheelName(p))
	if len(data) > mostWheel && (p == host() || *existing != "") { // others are not optimized, and larger
		t.Errorf("%d bytes, the limit is %d", len(data), mostWheel)
	}
	names, entries := unzip(t, data)
	prefix := "cohort_dist-" + m.source.version
	for name, mode := range map[string]int{
		"cohort_dist/__init__.py": 0o644, "cohort_dist/__main__.py": 0o644, "cohort_dist/py.typed": 0o644,
		prefix + ".data/scripts/cohort": 0o755, prefix + ".data/scripts/cohort-dist": 0o755, prefix + ".dist-info/LICENSE": 0o644,
		prefix + ".dist-info/METADATA": 0o644, prefix + ".dist-info/WHEEL": 0o644, prefix + ".dist-info/sboms/cohort.cdx.json": 0o644,
	} {
		if e, there := entries[name]; !there || int(e.mode) != mode {
			t.Errorf("%s: there %v, mode %v", name, there, e.mode)
		}
	}
	var rows []string
	for _, n := range names[:len(names)-1] {
		sum := sha256.Sum256(entries[n].data)
		rows = append(rows, fmt.Sprintf("%s,sha256=%s,%d", n, base64.RawURLEncoding.EncodeToString(sum[:]), len(entries[n].data)))
	}
	rows = append(rows, prefix+".dist-info/RECORD,,", "")
	if got := strings.Split(string(entries[prefix+".dist-info/RECORD"].data), "\n"); !slices.Equal(got, rows) {
		t.Errorf("RECORD\n%q\nnot\n%q", got, rows)
	}
	for _, bad := range []string{"torchrun", ".pth", "entry_points"} { // it neither replaces a command nor runs when Python or torch starts
		if all := strings.Join(names, " "); strings.Contains(all, bad) {
			t.Errorf("%s is in the wheel: %s", bad, all)
		}
	}
	_, packed := m.file(t, m.source.stem(p)+".tar.gz")
	if archive := untar(t, gunzip(t, packed)); !bytes.Equal(archive[p.exe()].data, entries[prefix+".data/scripts/cohort"].data) {
		t.Error("the wheel has another binary than the archive")
	}
	about := string(entries[prefix+".dist-info/METADATA"].data)
	if !strings.Contains(about, "\nName: cohort-dist\nVersion: "+m.source.version+"\n") || strings.Contains(about, "Requires-Dist") {
		t.Errorf("METADATA\n%s", about)
	}
	for tag := range strings.SplitSeq(p.wheelTag, ".") {
		if !strings.Contains(string(entries[prefix+".dist-info/WHEEL"].data), "Tag: py3-none-"+tag+"\n") {
			t.Errorf("WHEEL does not name %s", tag)
		}
	}
}

// wheelName is the name of a platform's wheel.
func (m made) wheelName(p platform) string {
	return "cohort_dist-" + m.source.version + "-py3-none-" + p.wheelTag + ".whl"
}
