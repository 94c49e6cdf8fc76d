// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// snippet is a piece of Go in a page. The comment before it, if any, declares what the reader is to imagine around it:
//
//	<!-- given: [Model any] (ctx context.Context, t *tensor.Tensor) -->
//	```go
var snippet = regexp.MustCompile("(?s)(?:<!-- given: (.*?) -->\n+)?```go\n(.*?)```")

// imagined is what every snippet may use without saying so.
const imagined = "(ctx context.Context)"

// TestSnippets compiles every piece of Go in the documentation. The functions around them exist only in an overlay of the
// go command.
func TestSnippets(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := filepath.Glob(filepath.Join(root, "*.md"))
	more, _ := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	names := importable(t)
	dir, overlay, found := t.TempDir(), map[string]string{}, 0
	for _, page := range append(pages, more...) {
		text, unread := os.ReadFile(page)
		if unread != nil {
			t.Fatal(unread)
		}
		for _, m := range snippet.FindAllSubmatchIndex(text, -1) {
			given := imagined
			if m[2] >= 0 {
				given = string(text[m[2]:m[3]])
			}
			line := 1 + strings.Count(string(text[:m[4]]), "\n")
			file := filepath.Join(dir, fmt.Sprintf("s%d.go", found))
			source := program(t, names, given, string(text[m[4]:m[5]]), fmt.Sprintf("%s:%d", page, line))
			if err = os.WriteFile(file, []byte(source), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay[filepath.Join(root, "internal", "repolint", "snippets", strconv.Itoa(found), "snippet.go")] = file
			found++
		}
	}
	if found < 5 {
		t.Fatalf("only %d snippets were found", found)
	}
	config, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	replace := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replace, config, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", replace, "./internal/repolint/snippets/...")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// program wraps a snippet in a function. Variables that it declares count as used; a return gives up with an error.
func program(t *testing.T, names map[string]string, given, text, where string) string {
	t.Helper()
	if strings.HasPrefix(text, "package ") { // a whole program
		return text
	}
	body := fmt.Sprintf("package snippet\nfunc _%s error {\n%s\nreturn nil\n}\n", given, text)
	f, err := parser.ParseFile(token.NewFileSet(), where, body, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return "package snippet\n"
	}
	var used, imports []string
	declared := map[string]bool{}
	function, ok := f.Decls[0].(*ast.FuncDecl)
	if !ok {
		t.Fatalf("%s: no function came out", where)
	}
	for _, stmt := range function.Body.List {
		if a, ok := stmt.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			for _, left := range a.Lhs {
				if id, ok := left.(*ast.Ident); ok && id.Name != "_" {
					declared[id.Name] = true
					used = append(used, "_ = "+id.Name)
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && names[id.Name] != "" && !declared[id.Name] {
				imports = append(imports, fmt.Sprintf("import %q", names[id.Name]))
			}
		}
		return true
	})
	slices.Sort(imports)
	return fmt.Sprintf("package snippet\n%s\nfunc _%s error {\n//line %s\n%s\n%s\nreturn nil\n}\n",
		strings.Join(slices.Compact(imports), "\n"), given, where, text, strings.Join(used, "\n"))
}

// importable maps the names of packages to their paths: the public ones of this module, and of the standard library what snippets use.
func importable(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{"rand": "math/rand/v2", "cohort": module}
	for _, std := range []string{"context", "errors", "fmt", "log/slog", "net/http", "os", "syscall", "time", "log"} {
		names[path.Base(std)] = std
	}
	for _, pkg := range publicPackages(t) {
		if pkg != "." {
			names[path.Base(pkg)] = module + "/" + pkg
		}
	}
	return names
}
