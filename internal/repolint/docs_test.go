// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	// link is a link of a page to a file of this repository or, with a scheme, to somewhere else.
	link = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	// mention is a path of this repository in the text.
	code    = regexp.MustCompile("(?s)```.*?```")
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
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
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

// TestErrorsPage: every code of package cohort has its row in docs/errors.md, in their order.
func TestErrorsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows, codes []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z]\\w+)` \\|").FindAllSubmatch(page, -1) {
		rows = append(rows, string(m[1]))
	}
	f, err := parser.ParseFile(token.NewFileSet(), "../../error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok && v.Names[0].IsExported() && v.Names[0].Name != "NoRank" {
				codes = append(codes, v.Names[0].Name)
			}
		}
	}
	if len(codes) < 10 || !slices.Equal(rows, codes) {
		t.Errorf("the rows are %v, the codes %v", rows, codes)
	}
}

// variable looks like the name of an environment variable of PyTorch, of a launcher or of ours.
var variable = regexp.MustCompile(`^(COHORT|TORCH|TORCHELASTIC|GLOO|TP|MASTER|WORLD|LOCAL|GROUP|ROLE|NCCL|OMP|SLURM|OMPI|JOB|SKYPILOT|CUDA|XDG|NO)_[A-Z0-9_]+$|^RANK$|^PYTHON(PATH|FAULTHANDLER|_EXEC)$`)

// TestEnvironmentPage: docs/environment.md names every environment variable that the code does, and no other.
func TestEnvironmentPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/environment.md")
	if err != nil {
		t.Fatal(err)
	}
	named, used := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile("`([A-Z][A-Z0-9_]+)`").FindAllSubmatch(page, -1) {
		if name := string(m[1]); variable.MatchString(name) {
			named[name] = true
		}
	}
	for _, s := range sources(t) {
		if s.test || isOutside(s.pkg) && s.pkg != "internal/testing/torchtest" {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", s.file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if name, err := strconv.Unquote(lit.Value); err == nil && variable.MatchString(name) {
					used[name] = true
					if !named[name] {
						t.Errorf("%s uses %s, which docs/environment.md does not name", s.file, name)
					}
				}
			}
			return true
		})
	}
	for name := range named {
		if !used[name] {
			t.Errorf("docs/environment.md names %s, which no code uses", name)
		}
	}
}
