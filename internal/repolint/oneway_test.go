// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// circles are the packages in which calls come back over several files to where they began, with the reason.
var circles = map[string]string{
	"autograd/distautograd": "the driver of a machine: what a step sends may be answered at once, which is the next step",
	"internal/group/native/nativetcp": "who reads a goodbye reads what the others say first; who reads nonsense ends the group, and " +
		"all connections with it",
	"internal/python/pickle":   "values contain values",
	"internal/rpc/rpcsession":  "a connection that was lost is made again",
	"internal/rpc/rpcref":      "the driver of a machine: what a step sends may be answered at once, which is the next step",
	"internal/rpc/rpcserver":   "requests contain requests",
	"internal/store/storecore": "a client that is cut may be the last one, with which others are cut",
}

// TestOneWay: inside a package calls go one way, so that a reader follows one from top to bottom. Functions that lead back to themselves
// stand in one file, where they are seen together. Calls through interfaces and tables of functions are not followed.
func TestOneWay(t *testing.T) {
	t.Parallel()
	all := compiled(t)
	seen := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(all[path].Export) })
	for _, path := range slices.Sorted(maps.Keys(all)) {
		name, ours := strings.CutPrefix(path, module)
		name = strings.TrimPrefix(name, "/")
		if !ours || isOutside(name) {
			continue
		}
		found := functions(t, all[path], seen).circles()
		switch why, known := circles[name]; {
		case known && len(found) != 1:
			t.Errorf("package %q has %d circles of calls, and one is known (%s); put the functions of a new one into one file, "+
				"or let the lower one return what the upper one is to do: %v", name, len(found), why, found)
		case !known && len(found) > 0:
			t.Errorf("package %q: calls come back over several files: put these functions into one file, "+
				"or let the lower one return what the upper one is to do: %v", name, found)
		}
	}
	for name := range circles {
		if _, ok := all[module+"/"+name]; !ok {
			t.Errorf("package %q does not exist any more: take it out of circles", name)
		}
	}
}

// compiledPackage is a package as the go command knows it. Export is the file with what others see of it.
type compiledPackage struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
}

// compiled returns the packages of all modules and all that they need.
func compiled(t *testing.T) map[string]compiledPackage {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles", "./..."}
	for _, dir := range nested {
		args = append(args, "./"+dir+"/...")
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0") // the same files on every platform
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &complaints)
	}
	all := map[string]compiledPackage{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p compiledPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}

// callGraph says which functions of a package mention which others, and in which files they are.
type callGraph struct {
	calls map[string][]string
	file  map[string]string
}

// functions reads the functions of a package; seen is where it finds what it needs of others.
func functions(t *testing.T, p compiledPackage, seen types.Importer) callGraph {
	t.Helper()
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: seen}
	pkg, err := config.Check(p.ImportPath, files, parsed, info)
	if err != nil {
		t.Fatal(err)
	}
	g := callGraph{map[string][]string{}, map[string]string{}}
	for _, f := range parsed {
		for _, decl := range f.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			by := functionName(info.Defs[function.Name])
			g.file[by] = filepath.Base(files.Position(function.Pos()).Filename)
			ast.Inspect(function, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					if to, ok := info.Uses[id].(*types.Func); ok && to.Pkg() == pkg {
						g.calls[by] = append(g.calls[by], functionName(to))
					}
				}
				return true
			})
		}
	}
	return g
}

// functionName is the name of a function with its receiver. Those of the same name, such as init, are one.
func functionName(o types.Object) string {
	f, ok := o.(*types.Func)
	if !ok {
		return "_"
	}
	return strings.ReplaceAll(f.Origin().FullName(), f.Pkg().Path()+".", "")
}

// circles returns the functions that lead back to themselves through other files.
func (g callGraph) circles() (found []string) {
	for _, part := range g.knots() {
		places := map[string]bool{}
		for _, f := range part {
			places[g.file[f]] = true
		}
		if len(places) > 1 {
			slices.SortFunc(part, func(a, b string) int { return strings.Compare(g.file[a]+a, g.file[b]+b) })
			var text []string
			for _, f := range part {
				text = append(text, fmt.Sprintf("%s (%s)", f, g.file[f]))
			}
			found = append(found, strings.Join(text, ", "))
		}
	}
	return found
}

// knots returns the sets of functions each of which leads to all others of its set, as Tarjan finds them.
func (g callGraph) knots() (found [][]string) {
	number, low, open := map[string]int{}, map[string]int{}, map[string]bool{}
	var path []string
	var visit func(f string)
	visit = func(f string) {
		number[f] = len(number) + 1
		low[f], open[f] = number[f], true
		path = append(path, f)
		for _, to := range g.calls[f] {
			if number[to] == 0 {
				visit(to)
				low[f] = min(low[f], low[to])
			} else if open[to] {
				low[f] = min(low[f], number[to])
			}
		}
		if low[f] == number[f] {
			at := slices.Index(path, f)
			found = append(found, slices.Clone(path[at:]))
			for _, member := range path[at:] {
				open[member] = false
			}
			path = path[:at]
		}
	}
	for _, f := range slices.Sorted(maps.Keys(g.file)) {
		if number[f] == 0 {
			visit(f)
		}
	}
	return found
}
