// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// goName is a name of a public package on the page for users of PyTorch: "group.Group.AllReduce", "autograd/distautograd.Context".
var goName = regexp.MustCompile("`((?:[a-z]+/)?[a-z]+)\\.([A-Z][A-Za-z0-9]*)(?:\\.([A-Z][A-Za-z0-9]*))?`")

// counterpart is PyTorch's name in a comment on one of ours: "It corresponds to torch.distributed.all_reduce."
var counterpart = regexp.MustCompile(`orresponds to (torch\.(?:distributed|nn|optim|autograd|futures)[A-Za-z0-9_.]*[A-Za-z0-9_])`)

// TestPyTorchPage: what docs/pytorch.md says PyTorch's names correspond to exists, and the counterparts that comments name are there.
func TestPyTorchPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/pytorch.md")
	if err != nil {
		t.Fatal(err)
	}
	names, counterparts := map[string]bool{}, map[string]string{}
	for _, s := range sources(t) {
		if s.test || strings.Contains(s.pkg+"/", "internal/") {
			continue
		}
		pkg := path.Base(s.pkg)
		if s.pkg == "." {
			pkg = "cohort"
		}
		f, failed := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", s.file), nil, parser.ParseComments)
		if failed != nil {
			t.Fatal(failed)
		}
		for _, name := range exported(f) {
			names[pkg+"."+name], names[s.pkg+"."+name] = true, true
		}
		for _, group := range f.Comments {
			for _, m := range counterpart.FindAllStringSubmatch(strings.Join(strings.Fields(group.Text()), " "), -1) {
				counterparts[m[1]] = s.file
			}
		}
	}
	if len(counterparts) < 60 {
		t.Errorf("comments name %d counterparts in PyTorch", len(counterparts))
	}
	for name, file := range counterparts {
		if !strings.Contains(string(page), name+"`") {
			t.Errorf("%s names %s as a counterpart, docs/pytorch.md does not have it: add it there", file, name)
		}
	}
	matches := goName.FindAllStringSubmatch(string(page), -1)
	if len(matches) < 100 {
		t.Errorf("the page names %d names of ours", len(matches))
	}
	for _, m := range matches {
		name := m[1] + "." + m[2]
		if m[3] != "" {
			name += "." + m[3]
		}
		if m[1] != "torch" && !names[name] {
			t.Errorf("docs/pytorch.md names %s, which does not exist: write its present name", name)
		}
	}
}

// exported lists what a file exports: "New", "Group", "Group.AllReduce".
func exported(f *ast.File) []string {
	var all []string
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			all = append(all, name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					all = append(all, s.Name.Name)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						all = append(all, n.Name)
					}
				}
			}
		}
	}
	return all
}

// receiver is the name of a method's type, without pointer and parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
