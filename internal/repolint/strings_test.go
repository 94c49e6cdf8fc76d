// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// TestPublicTypesPrint: an exported type whose printed form would be pointers and locks, or a number that stands for a name, has
// a String method or is an error. Structs with exported fields, texts, slices and maps print well by themselves.
func TestPublicTypesPrint(t *testing.T) {
	t.Parallel()
	public := publicPackages(t)
	type name struct{ pkg, typ string }
	needs, prints, constants := map[name]string{}, map[name]bool{}, map[name]int{}
	for _, s := range sources(t) {
		if s.test || !slices.Contains(public, s.pkg) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", s.file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && (d.Name.Name == "String" || d.Name.Name == "Error") {
					prints[name{s.pkg, receiver(d.Recv.List[0].Type)}] = true
				}
			case *ast.GenDecl:
				var last string // the type of a constant without one is that of the one before
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if why := opaque(spec); why != "" {
							needs[name{s.pkg, spec.Name.Name}] = why
						}
					case *ast.ValueSpec:
						if spec.Type != nil {
							last = receiver(spec.Type)
						} else if len(spec.Values) > 0 {
							last = ""
						}
						if d.Tok == token.CONST && spec.Names[0].IsExported() {
							constants[name{s.pkg, last}]++
						}
					}
				}
			}
		}
	}
	for n, why := range needs {
		if why == "number" && constants[n] < 2 || prints[n] {
			continue
		}
		t.Errorf("%s.%s is a %s without a String method: add one, so that a printed value can be read", n.pkg, n.typ, why)
	}
	if len(prints) < 20 || len(needs) < 20 {
		t.Errorf("only %d types with and %d that want a String method were found", len(prints), len(needs))
	}
}

// opaque says why a type does not print well by itself, "" if it does.
func opaque(spec *ast.TypeSpec) string {
	if !spec.Name.IsExported() || spec.Assign.IsValid() || spec.Name.Name == "Option" { // an option is only passed on
		return ""
	}
	switch u := spec.Type.(type) {
	case *ast.StructType:
		for _, f := range u.Fields.List {
			if len(f.Names) == 0 && ast.IsExported(receiver(f.Type)) { // embedded: it has that one's methods
				return ""
			}
			if slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) { // what it shows is told
				return ""
			}
		}
		if len(u.Fields.List) > 0 {
			return "struct with hidden fields"
		}
	case *ast.Ident:
		if slices.Contains([]string{"int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64"}, u.Name) {
			return "number"
		}
	}
	return ""
}
