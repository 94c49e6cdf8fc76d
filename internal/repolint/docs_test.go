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
	root, checked := filepath.Join("..", ".."), 0
	exists := func(page, path string, below ...string) {
		checked++
		for _, dir := range below {
			if _, err := os.Stat(filepath.Join(root, dir, path)); err == nil {
				return
			}
		}
		t.Errorf("%s names %s, which does not exist: write the present path", page, path)
	}
	for name, text := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			if !strings.Contains(match[1], "://") {
				exists(name, match[1], filepath.Dir(name))
			}
		}
		for _, match := range mention.FindAllStringSubmatch(text, -1) {
			exists(name, match[1], ".", filepath.Dir(name))
		}
	}
	if checked < 20 {
		t.Errorf("only %d names were found", checked)
	}
}

// pythonModule are modules that the Python in the pages uses by their names.
var pythonModule = regexp.MustCompile(`(?m)(?:^|[^\w.])(json|os|sys|time|torch|math)\.\w`)

// TestPythonImports: a piece of Python in a page imports the modules that it uses, so that it can be copied.
func TestPythonImports(t *testing.T) {
	t.Parallel()
	pieces := 0
	for name, text := range pages(t) {
		for _, piece := range regexp.MustCompile("(?s)```python\n(.*?)```").FindAllStringSubmatch(text, -1) {
			pieces++
			for _, m := range pythonModule.FindAllStringSubmatch(piece[1], -1) {
				if !regexp.MustCompile(`(?m)^\s*import .*\b` + m[1] + `\b`).MatchString(piece[1]) {
					t.Errorf("%s: Python uses %s without importing it: add the import, so that readers can copy the piece:\n%s",
						name, m[1], piece[1])
				}
			}
		}
	}
	if pieces < 3 {
		t.Errorf("only %d pieces were found", pieces)
	}
}

var (
	// toHeading is a link to a heading, of this page or another one.
	toHeading = regexp.MustCompile(`\]\(([^)#\s]*)#([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinksToHeadings keeps links to headings true when a heading changes.
func TestLinksToHeadings(t *testing.T) {
	t.Parallel()
	anchors, links := map[string][]string{}, map[string][][]string{}
	for name, text := range pages(t) {
		text = code.ReplaceAllString(text, "")
		anchors[name] = nil
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			words := notAnchor.ReplaceAllString(strings.ToLower(m[1]), "")
			anchors[name] = append(anchors[name], strings.ReplaceAll(words, " ", "-"))
		}
		links[name] = toHeading.FindAllStringSubmatch(text, -1)
	}
	checked := 0
	for name, found := range links {
		for _, m := range found {
			target := name
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(name), m[1])
			}
			if all, page := anchors[target]; page {
				checked++
				if !slices.Contains(all, m[2]) {
					t.Errorf("%s links to the heading %s of %s, which does not exist: name one that does", name, m[2], target)
				}
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d links to headings were found", checked)
	}
}

// TestPagesNameTests: a test that a page names exists. docs/conformance.md has its own parser.
func TestPagesNameTests(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", "..", s.file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
			known[string(m[1])] = true
		}
	}
	checked := 0
	for name, text := range pages(t) {
		if name == filepath.Join("docs", "conformance.md") {
			continue
		}
		for _, m := range regexp.MustCompile("`(Test[A-Z]\\w+)`").FindAllStringSubmatch(text, -1) {
			checked++
			if !known[m[1]] {
				t.Errorf("%s names the test %s, which does not exist: write its present name", name, m[1])
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d names of tests were found", checked)
	}
}

// pages returns the Markdown pages of the repository by their paths.
func pages(t *testing.T) map[string]string {
	t.Helper()
	root, all := filepath.Join("..", ".."), map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		all[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Errorf("only %d pages were found", len(all))
	}
	return all
}

// names are Go names in the text of a page.
var names = regexp.MustCompile("`((?:[A-Za-z_][A-Za-z0-9_]*\\.)*[A-Za-z_][A-Za-z0-9_]*)`")

// TestLocksPage: docs/internals/locks.md names locks, fields and functions that exist.
func TestLocksPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/internals/locks.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range sources(t) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", s.file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && !s.test {
				known[id.Name] = true
			}
			return true
		})
	}
	checked := 0
	for _, m := range names.FindAllSubmatch(page, -1) {
		if strings.HasSuffix(string(m[1]), ".go") || !strings.ContainsAny(string(m[1]), ".ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			continue // a file, or an ordinary word
		}
		for part := range strings.SplitSeq(string(m[1]), ".") {
			checked++
			if !known[part] {
				t.Errorf("docs/internals/locks.md says %s, but no code has the name %s: write its present name", m[1], part)
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d names were found", checked)
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
		t.Errorf("the rows are %v, the codes %v: make the table have one row for each code", rows, codes)
	}
}

// variable looks like the name of an environment variable of PyTorch, of a launcher or of ours.
var variable = regexp.MustCompile(
	`^(COHORT|TORCH|TORCHELASTIC|GLOO|TP|MASTER|WORLD|LOCAL|GROUP|ROLE|NCCL|OMP|SLURM|OMPI|JOB|SKYPILOT|CUDA|XDG|NO)_` +
		`[A-Z0-9_]+$|^RANK$|^PYTHON(PATH|FAULTHANDLER|_EXEC)$`)

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
						t.Errorf("%s uses %s, which docs/environment.md does not name: add a row for it", s.file, name)
					}
				}
			}
			return true
		})
	}
	for name := range named {
		if !used[name] {
			t.Errorf("docs/environment.md names %s, which no code uses: take the row out", name)
		}
	}
}
