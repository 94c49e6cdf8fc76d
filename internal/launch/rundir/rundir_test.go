// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDir: what passes is reported before it is there, and nothing else is removed at the end.
func TestDir(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	logs := filepath.Join(tmp, "logs")
	for name, c := range map[string]struct {
		options   Options
		left      []string // below tmp, as patterns
		errorFile bool
	}{
		"temporary":   {Options{RunID: "a", Shim: true}, nil, true},
		"kept":        {Options{RunID: "b", Keep: true}, []string{"cohort_run_*/b_*/attempt_0/1/stdout.log"}, true},
		"log files":   {Options{RunID: "c", Base: logs, Shim: true}, []string{"logs/c_*/attempt_0/1/stdout.log"}, true},
		"null device": {Options{RunID: "d", Base: os.DevNull}, nil, false},
	} {
		var passing []string
		c.options.Passing = func(paths []string) {
			passing = paths
			for _, p := range paths {
				if _, err := os.Stat(p); err == nil {
					t.Errorf("%s: %s is there before it is reported", name, p)
				}
			}
		}
		d, err := New(c.options)
		if err != nil {
			t.Fatal(err)
		}
		if err = d.Prepare(0, 2); err != nil {
			t.Fatal(err)
		}
		f, err := d.Create(0, "1", "stdout.log")
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if _, err := os.Stat(filepath.Join(d.Path, "python", "sitecustomize.py")); (err == nil) != c.options.Shim {
			t.Errorf("%s: the shim: %v", name, err)
		}
		if got := d.ErrorFile(0, 1); (got != "") != c.errorFile || got != "" && !strings.HasSuffix(got, "attempt_0/1/error.json") {
			t.Errorf("%s: error file %q", name, got)
		}
		for _, open := range openToOthers(d.Path) {
			t.Errorf("%s: other users can use %s", name, open)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		for _, p := range passing {
			if _, err := os.Stat(p); err == nil {
				t.Errorf("%s: %s is left", name, p)
			}
		}
		var left []string
		_ = filepath.WalkDir(tmp, func(path string, e os.DirEntry, _ error) error {
			if !e.IsDir() {
				left = append(left, path)
			}
			return nil
		})
		if len(left) != len(c.left) || slices.ContainsFunc(c.left,
			func(p string) bool { ok, _ := filepath.Match(filepath.Join(tmp, p), left[0]); return !ok }) {
			t.Errorf("%s: left is %v, want %v", name, left, c.left)
		}
		for _, p := range left {
			_ = os.Remove(p)
		}
	}
}

// TestNoTemporaryFolder: a TMPDIR that cannot be used is passed over, as Python does.
func TestNoTemporaryFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(file, "x"), file, filepath.Join(filepath.Dir(file), "missing")} {
		t.Setenv("TMPDIR", dir)
		d, err := New(Options{RunID: "a"})
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNoLogFolder: the reason is reported once.
func TestNoLogFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{RunID: "a", Base: file}); err == nil || strings.Count(err.Error(), "not a directory") != 1 {
		t.Errorf("a file as the log folder: %v", err)
	}
}

// openToOthers returns what below a folder other users could read or write.
func openToOthers(folder string) (found []string) {
	_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil { // the null device has no folder
			return fs.SkipAll
		}
		if info, err := e.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			found = append(found, path)
		}
		return nil
	})
	return found
}
