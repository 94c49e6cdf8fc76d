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
	"path/filepath"
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

// TestWheel: names, modes, hashes and size of the wheel.
func TestWheel(t *testing.T) {
	t.Parallel()
	m := release(t)
	if host().wheelTag == "" {
		t.Skip("no wheel is made for " + host().String())
	}
	name, data := m.file(t, "*.whl")
	if want := "cohort_dist-" + m.source.version + "-py3-none-" + host().wheelTag + ".whl"; filepath.Base(name) != want {
		t.Errorf("%s, not %s", filepath.Base(name), want)
	}
	if len(data) > mostWheel {
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
	if strings.Contains(strings.Join(names, " "), "torchrun") {
		t.Error("the wheel replaces torchrun")
	}
	about := string(entries[prefix+".dist-info/METADATA"].data)
	if !strings.Contains(about, "\nName: cohort-dist\nVersion: "+m.source.version+"\n") || strings.Contains(about, "Requires-Dist") {
		t.Errorf("METADATA\n%s", about)
	}
	for tag := range strings.SplitSeq(host().wheelTag, ".") {
		if !strings.Contains(string(entries[prefix+".dist-info/WHEEL"].data), "Tag: py3-none-"+tag+"\n") {
			t.Errorf("WHEEL does not name %s", tag)
		}
	}
}
