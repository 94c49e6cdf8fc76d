// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOthers: of several programs with one name, those that the PATH leads to first and those behind are told apart, and one with two
// names is one.
func TestOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(folder string, mode os.FileMode) string {
		name := filepath.Join(dir, folder, "cohort")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	self, before, after := put("self", 0o755), put("before", 0o755), put("after", 0o755)
	put("text", 0o644)
	if err := os.MkdirAll(filepath.Join(dir, "folder", "cohort"), 0o755); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{self: "linked", before: "again"} {
		if err := os.MkdirAll(filepath.Join(dir, to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(from, filepath.Join(dir, to, "cohort")); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path string
		want []otherFile
	}{
		{"", nil},
		{"self", nil},
		{"text folder none linked self", nil},
		{"before again linked after", []otherFile{{before, true}, {after, false}}},
		{"before after", []otherFile{{before, false}, {after, false}}},
		{"self before", []otherFile{{before, false}}},
	} {
		var folders []string
		for f := range strings.FieldsSeq(c.path) {
			folders = append(folders, filepath.Join(dir, f))
		}
		if got := othersOf(self, strings.Join(folders, string(os.PathListSeparator))); !cmp.Equal(got, c.want) {
			t.Errorf("%s: %s", c.path, cmp.Diff(c.want, got))
		}
	}
	v := versionInfo{
		Version: "v1", Go: "go2", Platform: "a/b", File: "/x/cohort",
		Others: []otherFile{{"/y/cohort", true}, {"/z/cohort", false}},
	}
	want := "cohort v1, go2, a/b\nruns as /x/cohort\nanother one is on the PATH, before it: /y/cohort\n" +
		"another one is on the PATH, after it: /z/cohort"
	if got := v.details(); got != want {
		t.Error(got)
	}
}
