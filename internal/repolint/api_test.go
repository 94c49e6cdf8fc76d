// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/api.txt anew")

// TestExportedAPI compares everything that the public packages export with docs/api.txt, so that no change of it goes unseen.
func TestExportedAPI(t *testing.T) {
	t.Parallel()
	const golden = "../../docs/api.txt"
	var out bytes.Buffer
	out.WriteString("# The exported API on linux/amd64. After a change that is meant: go test ./internal/repolint -run API -update\n")
	for _, pkg := range publicPackages(t) {
		exportedAPI(t, &out, pkg)
	}
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(out.Bytes(), want) {
		return
	}
	now, then := bytes.Split(out.Bytes(), []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range now {
		if i >= len(then) || !bytes.Equal(now[i], then[i]) {
			t.Fatalf(
				"the API differs from docs/api.txt at line %d: %q. If that is meant: go test ./internal/repolint -run API -update",
				i+1, now[i])
		}
	}
	t.Fatal("docs/api.txt has more than the API. If that is meant: go test ./internal/repolint -run API -update")
}

// exportedAPI writes the exported declarations of a package, sorted, without comments and bodies.
func exportedAPI(t *testing.T, out *bytes.Buffer, pkg string) {
	t.Helper()
	dir := filepath.Join("..", "..", pkg)
	context := build.Default
	context.GOOS, context.GOARCH, context.CgoEnabled = "linux", "amd64", false
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var decls []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".go" || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		if match, err := context.MatchFile(dir, e.Name()); err != nil || !match {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if ast.FileExports(f) {
			decls = append(decls, declarations(t, fset, f)...)
		}
	}
	slices.Sort(decls)
	fmt.Fprintf(out, "\npackage %s\n\n%s", pkg, strings.Join(decls, ""))
}

// filtered is how the printer ends a struct or an interface of which a part is not exported, and hidden how it prints one of which
// nothing is.
var (
	filtered = regexp.MustCompile(`\s*\}\s*// contains filtered.*\s*`)
	hidden   = regexp.MustCompile(`\{` + filtered.String())
)

// declarations prints each declaration of a file that FileExports left, groups split up.
func declarations(t *testing.T, fset *token.FileSet, f *ast.File) []string {
	t.Helper()
	var all []string
	add := func(node any) {
		var b bytes.Buffer
		if err := (&printer.Config{Mode: printer.UseSpaces, Tabwidth: 4}).Fprint(&b, token.NewFileSet(), node); err != nil {
			t.Fatal(err)
		}
		all = append(all, filtered.ReplaceAllString(hidden.ReplaceAllString(b.String(), "{}"), "\n}")+"\n")
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			d.Body = nil
			if d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type)) {
				add(d)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if d.Tok != token.IMPORT {
					add(&ast.GenDecl{Tok: d.Tok, Specs: []ast.Spec{spec}})
				}
			}
		}
	}
	return all
}
