// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"os"
	"path"
	"strings"
	"testing"
)

// unlisted are packages that docs/architecture.md covers by the package that they are part of.
var unlisted = []string{"internal/cli/", "internal/native/", "internal/gloo/", "internal/repolint", "cmd/", "."}

// TestArchitecturePage: the map of the packages in docs/architecture.md names every package that is not for tests alone.
func TestArchitecturePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tree, _ := strings.Cut(string(page), "```\n")
	tree, _, _ = strings.Cut(tree, "```\n")
	named := map[string]bool{}
	for line := range strings.Lines(tree) {
		names, _, _ := strings.Cut(strings.TrimLeft(line, "│├└─ "), "  ") // the rest of the line says what they are
		for name := range strings.FieldsFuncSeq(names, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
			named[path.Base(name)] = true
		}
	}
	part := func(list []string, pkg string) bool {
		for _, p := range list {
			if p == pkg || strings.HasSuffix(p, "/") && strings.HasPrefix(pkg, p) {
				return true
			}
		}
		return false
	}
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if seen[s.pkg] || s.test || part(outside, s.pkg) || part(unlisted, s.pkg) || strings.HasPrefix(s.pkg, "internal/link/mem") {
			continue
		}
		seen[s.pkg] = true
		if !named[path.Base(s.pkg)] {
			t.Errorf("docs/architecture.md does not name %s", s.pkg)
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d packages were found", len(seen))
	}
}
