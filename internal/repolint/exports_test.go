// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExportsAreUsed: what an internal package exports is used by another package or by its external tests, stands in the signature of
// something else that it exports, or is one of several constants of a type, or of a declaration, of which another one is used.
func TestExportsAreUsed(t *testing.T) {
	t.Parallel()
	x := exports{declared: map[string]export{}, used: map[string]bool{}}
	for _, s := range sources(t) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", s.file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if !s.test && (strings.HasPrefix(s.pkg, "internal/") || strings.HasPrefix(s.pkg, "cmd/cohort/internal/")) {
			x.declare(s, f)
		}
		x.uses(f)
	}
	if len(x.declared) < 1000 {
		t.Errorf("only %d exported names were found", len(x.declared))
	}
	for _, e := range x.unused() {
		t.Errorf("%s: no other package uses %s: begin its name with a small letter", e.file, e.name)
	}
}

// TestUnusedExports: the rule finds what it is for.
func TestUnusedExports(t *testing.T) {
	t.Parallel()
	x := exports{declared: map[string]export{}, used: map[string]bool{}}
	for _, part := range []struct{ pkg, text string }{
		{"internal/a", `package a
type Used struct { Field InField; hidden InHidden }
type InField int
type InHidden int
type Result int
type Kind int
const ( One Kind = iota; Two )
const Alone = 1
const ( Left = "left"; Right = "right" )
func (Used) Method() Result { return 0 }
func Unused() {}`},
		{"b", `package b
import other "` + module + `/internal/a"
var x other.Used
var y, z = other.One, other.Left`},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "", part.text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if part.pkg == "internal/a" {
			x.declare(source{file: "a.go", pkg: part.pkg}, f)
		}
		x.uses(f)
	}
	var names []string
	for _, e := range x.unused() {
		names = append(names, e.name)
	}
	if want := []string{"internal/a.Alone", "internal/a.InHidden", "internal/a.Unused"}; !slices.Equal(names, want) {
		t.Errorf("unused are %v, want %v", names, want)
	}
}

// export is a name that a package exports. For a constant, family is its type, or its declaration if it has none.
type export struct{ name, file, family string }

// exports are the names that packages export, and those that are used, as "internal/a.Name".
type exports struct {
	declared map[string]export
	used     map[string]bool
}

// declare adds what a file declares, and what its exported signatures mention.
func (x exports) declare(s source, f *ast.File) {
	add := func(id *ast.Ident, family string) {
		if name := s.pkg + "." + id.Name; id.IsExported() {
			x.declared[name] = export{name, s.file, family}
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Name, "")
			}
			if d.Name.IsExported() {
				x.mention(s.pkg, d.Type)
			}
		case *ast.GenDecl:
			declaration := fmt.Sprintf("%s@%d", s.file, d.Pos())
			family := declaration
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name, "")
					x.mention(s.pkg, spec.Type)
				case *ast.ValueSpec:
					if spec.Type != nil {
						family = s.pkg + "." + receiver(spec.Type)
					} else if len(spec.Values) > 0 {
						family = declaration
					}
					for _, id := range spec.Names {
						add(id, family)
					}
				}
			}
		}
	}
}

// mention marks the names in a signature or a type as used. Fields that are not exported do not count.
func (x exports) mention(pkg string, expr ast.Expr) {
	ast.Inspect(expr, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			_, signature := expr.(*ast.FuncType)
			return signature || len(n.Names) == 0 || slices.ContainsFunc(n.Names, (*ast.Ident).IsExported)
		case *ast.Ident:
			x.used[pkg+"."+n.Name] = true
		}
		return true
	})
}

// uses marks what a file uses of other packages.
func (x exports) uses(f *ast.File) {
	imported := map[string]string{}
	for _, spec := range f.Imports {
		if target, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/"); ours {
			name := path.Base(target)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imported[name] = target
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && imported[id.Name] != "" {
				x.used[imported[id.Name]+"."+s.Sel.Name] = true
			}
		}
		return true
	})
}

// unused returns the exports without a use, in order.
func (x exports) unused() []export {
	families := map[string]bool{}
	for name, e := range x.declared {
		families[e.family] = families[e.family] || x.used[name]
	}
	var found []export
	for name, e := range x.declared {
		if !x.used[name] && !families[name] && (e.family == "" || !families[e.family]) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b export) int { return strings.Compare(a.name, b.name) })
	return found
}
