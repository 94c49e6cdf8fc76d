// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostLines is the length of a page for users: longer ones are not read to the end.
const mostLines = 250

// longPages are references, which are searched and not read.
var longPages = []string{"docs/benchmarks.md", "docs/conformance.md", "docs/decisions.md"}

// TestPagesAreShort holds the pages below docs, and the README, to mostLines. Those of wire formats and internals may be longer.
func TestPagesAreShort(t *testing.T) {
	t.Parallel()
	checked := 0
	for name, text := range pages(t) {
		name = filepath.ToSlash(name)
		if dir := path.Dir(name); name != "README.md" && dir != "docs" && dir != "examples" || slices.Contains(longPages, name) {
			continue
		}
		checked++
		if n := strings.Count(text, "\n"); n > mostLines {
			t.Errorf("%s has %d lines, more than %d: move a section to a page of its own, and link to it", name, n, mostLines)
		}
	}
	if checked < 15 {
		t.Errorf("only %d pages were found", checked)
	}
}

// TestEveryPageIsInTheIndex: docs/README.md links to every page below docs, and examples/README.md to every example.
func TestEveryPageIsInTheIndex(t *testing.T) {
	t.Parallel()
	all := pages(t)
	listed := linked(all, "docs/README.md")
	for name := range all {
		name = filepath.ToSlash(name)
		if strings.HasPrefix(name, "docs/") && name != "docs/README.md" && !slices.Contains(listed, name) {
			t.Errorf("docs/README.md does not list %s: add a line that says what is in it", name)
		}
	}
	if len(listed) < 20 {
		t.Errorf("docs/README.md lists %d pages", len(listed))
	}
	examples, err := os.ReadDir("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	listed = linked(all, "examples/README.md")
	for _, e := range examples {
		if name := "examples/" + e.Name(); e.IsDir() && e.Name() != "internal" && !slices.Contains(listed, name) {
			t.Errorf("examples/README.md does not list %s: add a row that says what it shows and how to run it", name)
		}
	}
}

// linked returns the files of this repository that a page links to, by their paths.
func linked(all map[string]string, page string) []string {
	var found []string
	for _, m := range link.FindAllStringSubmatch(all[filepath.FromSlash(page)], -1) {
		if !strings.Contains(m[1], "://") {
			found = append(found, path.Join(path.Dir(page), m[1]))
		}
	}
	return found
}
