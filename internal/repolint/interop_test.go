// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestNotApplicable: a test with PyTorch that begins with a return under a condition would count as passed without having tested anything.
// torchtest.Torch.NotApplicable counts it as what it is.
func TestNotApplicable(t *testing.T) {
	t.Parallel()
	seen := 0
	interopNodes(t, func(files *token.FileSet, n ast.Node) bool {
		var typ *ast.FuncType
		var body *ast.BlockStmt
		switch n := n.(type) {
		case *ast.FuncDecl:
			typ, body = n.Type, n.Body
		case *ast.FuncLit:
			typ, body = n.Type, n.Body
		}
		if body == nil || !isTest(typ) {
			return true
		}
		seen++
		if returnsAtOnce(body) {
			t.Errorf("%s: a test that ends here would count as passed: use torchtest.Torch.NotApplicable",
				files.Position(body.List[0].Pos()))
		}
		return true
	})
	if seen < 100 {
		t.Errorf("only %d tests were found", seen)
	}
}

// isTest reports whether a function takes a *testing.T and returns nothing.
func isTest(f *ast.FuncType) bool {
	if f.Results != nil || len(f.Params.List) == 0 {
		return false
	}
	p, ok := f.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	s, ok := p.X.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "T"
}

// returnsAtOnce reports whether a function begins with "if ... { return }".
func returnsAtOnce(body *ast.BlockStmt) bool {
	if len(body.List) == 0 {
		return false
	}
	first, ok := body.List[0].(*ast.IfStmt)
	if !ok || len(first.Body.List) != 1 {
		return false
	}
	_, ok = first.Body.List[0].(*ast.ReturnStmt)
	return ok
}

// TestSkips: 'make interop' fails when a test is skipped for a reason that is not the installed PyTorch's. A test may
// be skipped when interop was not asked for, or when the machine lacks something; the part of a test that runs in a
// process of its own belongs into TestMain.
func TestSkips(t *testing.T) {
	t.Parallel()
	seen := 0
	interopNodes(t, func(files *token.FileSet, n ast.Node) bool {
		reason, ok := skipReason(n)
		if !ok {
			return true
		}
		seen++
		if !strings.HasPrefix(reason, `"interop: left out`) && !strings.HasPrefix(reason, `"this machine cannot`) {
			t.Errorf("%s: a skip for %s would fail 'make interop': use torchtest.Torch.NotApplicable, or let the test fail",
				files.Position(n.Pos()), reason)
		}
		return true
	})
	if seen < 5 {
		t.Errorf("only %d skips were found", seen)
	}
}

// skipReason returns the first argument of a call of Skip, Skipf or SkipNow, as it is written.
func skipReason(n ast.Node) (reason string, ok bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(s.Sel.Name, "Skip") {
		return "", false
	}
	if len(call.Args) > 0 {
		if text, ok := call.Args[0].(*ast.BasicLit); ok {
			return text.Value, true
		}
	}
	return "no reason", true
}

// interopNodes visits the syntax of all tests with PyTorch.
func interopNodes(t *testing.T, visit func(*token.FileSet, ast.Node) bool) {
	t.Helper()
	for _, s := range sources(t) {
		if !s.test || !strings.HasPrefix(s.file, "interop/") {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, filepath.Join("..", "..", s.file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool { return visit(files, n) })
	}
}
