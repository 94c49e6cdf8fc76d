// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tree finds Go tests in the source of a module.
type tree struct {
	root     string
	packages map[string]*tests
	// suites are folders of exported suites, whose cases are subtests of the tests that run them.
	suites []string
}

// tests is what the test files of one folder contain.
type tests struct {
	functions map[string]bool
	literals  map[string]bool
}

// newTree returns the tree below root. Subtests may also come from the cases in the folders suites.
func newTree(root string, suites ...string) *tree {
	return &tree{root: root, packages: map[string]*tests{}, suites: suites}
}

// Find returns an error unless the test exists: its function in a test file of its package, and its subtest as a string
// there or in one of the suites.
func (t *tree) Find(g GoTest) error {
	own, err := t.load(g.Package, true)
	if err != nil {
		return fmt.Errorf("%v: %w", g, err)
	}
	if !own.functions[g.Name] {
		return fmt.Errorf("%v: no such test", g)
	}
	for part := range strings.SplitSeq(g.Subtest, "/") {
		if part == "" || own.literals[part] || t.inSuites(part) {
			continue
		}
		return fmt.Errorf("%v: no subtest %q", g, part)
	}
	return nil
}

func (t *tree) inSuites(name string) bool {
	for _, folder := range t.suites {
		if suite, err := t.load(folder, false); err == nil && suite.literals[name] {
			return true
		}
	}
	return false
}

// load parses a folder once: its test files, or all others.
func (t *tree) load(folder string, testFiles bool) (*tests, error) {
	cached := fmt.Sprint(folder, testFiles)
	if found := t.packages[cached]; found != nil {
		return found, nil
	}
	if !filepath.IsLocal(folder) {
		return nil, fmt.Errorf("%q leads out of the repository", folder)
	}
	entries, err := os.ReadDir(filepath.Join(t.root, folder))
	if err != nil {
		return nil, fmt.Errorf("no such package: %w", err)
	}
	all := &tests{functions: map[string]bool{}, literals: map[string]bool{}}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") != testFiles {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(t.root, folder, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		all.collect(file)
	}
	t.packages[cached] = all
	return all, nil
}

func (t *tests) collect(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil {
				t.functions[n.Name.Name] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				t.literals[text] = true
			}
		}
		return true
	})
}
