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

const (
	// mostFolders is how many groups internal may have: as many as one reads at a glance.
	mostFolders = 16
	// fewLines is the size below which a package that only one other package imports should be a file of that package.
	fewLines = 150
)

// refusedFolders are names that version control, editors, build tools and packagers take for the output of a build, and leave out.
var refusedFolders = []string{"dist", "build", "out", "vendor", "target", "bin"}

// smallPackages are the packages below fewLines with one importer that stand alone for a reason.
var smallPackages = map[string]string{
	"cmd/cohort/internal/schema": "it is the folder of the JSON schemas, which pages name and tests of other packages read",
}

// TestFolders: packages stand in groups, with names of their own.
func TestFolders(t *testing.T) {
	t.Parallel()
	groups, err := os.ReadDir(filepath.Join("..", "..", "internal"))
	if err != nil {
		t.Fatal(err)
	}
	if len(groups) > mostFolders {
		t.Errorf("internal has %d folders, the limit is %d: put the new package into the group whose field it belongs to",
			len(groups), mostFolders)
	}
	byName := map[string][]string{}
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, "internal/") && strings.Count(s.pkg, "/") == 1 && s.pkg != "internal/repolint" {
			t.Errorf("%s: package %q stands directly in internal: move it into one of the groups there", s.file, s.pkg)
		}
		top, _, _ := strings.Cut(s.pkg, "/")
		if name := path.Base(s.pkg); !slices.Contains([]string{"interop", "examples", "."}, top) && !slices.Contains(byName[name], s.pkg) {
			byName[name] = append(byName[name], s.pkg)
		}
	}
	for file := range texts(t) {
		for part := range strings.SplitSeq(path.Dir(file), "/") {
			if slices.Contains(refusedFolders, part) {
				t.Errorf("%s: tools leave out a folder named %q as the output of a build: name it after what it holds", file, part)
			}
		}
	}
	for name, pkgs := range byName {
		if len(pkgs) > 1 && name != "." {
			t.Errorf("the packages %v have the same last name: give the newer one a name that can be searched for", pkgs)
		}
	}
}

// TestSmallPackages: a small package that serves one other is a file of that one, unless there is a reason.
func TestSmallPackages(t *testing.T) {
	t.Parallel()
	lines, importers := map[string]int{}, map[string][]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		lines[s.pkg] += s.lines
		for _, spec := range s.ast.Imports {
			if target, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/"); ours &&
				!slices.Contains(importers[target], s.pkg) {
				importers[target] = append(importers[target], s.pkg)
			}
		}
	}
	for pkg, n := range lines {
		inside := strings.HasPrefix(pkg, "internal/") || strings.HasPrefix(pkg, "cmd/cohort/internal/")
		small := inside && !isOutside(pkg) && n < fewLines && len(importers[pkg]) == 1
		switch why := smallPackages[pkg]; {
		case small && why == "":
			t.Errorf("package %q has %d lines and only %s imports it: make it a file there, or give the reason in smallPackages",
				pkg, n, importers[pkg][0])
		case !small && why != "":
			t.Errorf("package %q is not small any more, or has other importers: take it out of smallPackages", pkg)
		}
	}
	for pkg := range smallPackages {
		if lines[pkg] == 0 {
			t.Errorf("package %q does not exist any more: take it out of smallPackages", pkg)
		}
	}
}
