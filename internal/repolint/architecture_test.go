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

// TestArchitecturePage: the trees in docs/architecture.md name every public package and every folder of internal, and nothing else.
func TestArchitecturePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```\n")
	if len(blocks) < 4 {
		t.Fatal("docs/architecture.md has no trees")
	}
	named := map[string]bool{}
	for line := range strings.Lines(blocks[1] + blocks[3]) {
		name, _, _ := strings.Cut(strings.TrimLeft(line, "│├└─ "), " ")
		named[path.Base(strings.TrimSpace(name))] = true
	}
	want := map[string]bool{"internal": true, "cohort": true}
	for _, pkg := range publicPackages(t) {
		want[path.Base(pkg)] = true
	}
	groups, err := os.ReadDir(filepath.Join("..", "..", "internal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		want[g.Name()] = true
	}
	delete(want, ".")
	for name := range want {
		if !named[name] {
			t.Errorf("docs/architecture.md does not name %s: add a line for it to one of the trees", name)
		}
	}
	for name := range named {
		if !want[name] {
			t.Errorf("docs/architecture.md names %s, which does not exist: take the line out", name)
		}
	}
}

// TestArchitectureDiagram: the diagram in docs/architecture.md shows the lines of layers, the highest first.
func TestArchitectureDiagram(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "│"); len(cells) == 4 {
			got = append(got, strings.Join(strings.Fields(cells[1]), " "))
		}
	}
	slices.Reverse(got)
	if want := strings.Split(strings.TrimSpace(layers), "\n"); !slices.Equal(got, want) {
		t.Errorf("docs/architecture.md shows, the lowest first,\n%s\nbut layers is\n%s\nmake the diagram show the lines of layers",
			strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
