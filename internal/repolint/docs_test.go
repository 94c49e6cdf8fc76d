// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// link is a link of a page to a file of this repository or, with a scheme, to somewhere else.
	link = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	// mention is a path of this repository in the text.
	mention = regexp.MustCompile("`((?:bench|cmd|docs|examples|internal|interop|scripts|store)/[A-Za-z0-9_./-]*)`")
)

// TestPagesNameWhatExists keeps links and paths in the documentation true when files move.
func TestPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	pages, checked := 0, 0
	exists := func(page, path string, below ...string) {
		checked++
		for _, dir := range below {
			if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
				return
			}
		}
		t.Errorf("%s names %s, which does not exist", page, path)
	}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		pages++
		for _, match := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(match[1], "://") {
				exists(name, match[1], filepath.Dir(name))
			}
		}
		for _, match := range mention.FindAllStringSubmatch(string(text), -1) {
			exists(name, match[1], root, filepath.Dir(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 5 || checked < 20 {
		t.Errorf("only %d pages with %d names were found", pages, checked)
	}
}
