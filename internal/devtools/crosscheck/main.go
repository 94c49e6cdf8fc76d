// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command crosscheck checks the types of the packages of a module for other platforms, from their sources. A compiler does the same and
// then writes machine code for the standard library and all dependencies, which takes minutes for each platform.
// What it alone would find here, a function without a body where no assembly belongs to it, is looked for too; what vet would is not.
//
//	crosscheck [-tests] [-dir FOLDER] OS/ARCH... [-- PACKAGE...]
//
// The packages are ./... unless named.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	tests := flag.Bool("tests", false, "check the tests too")
	dir := flag.String("dir", ".", "the folder of the module")
	flag.Parse()
	platforms, packages := flag.Args(), []string{"./..."}
	if i := slices.Index(platforms, "--"); i >= 0 {
		platforms, packages = platforms[:i], platforms[i+1:]
	}
	ok := len(platforms) > 0
	for _, platform := range platforms {
		n, err := check(*dir, platform, *tests, packages)
		fmt.Fprintf(os.Stdout, "cross %s: %d packages\n", platform, n)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			ok = false
		}
	}
	if !ok {
		os.Exit(1)
	}
}

// listed is a package as "go list" describes it.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	SFiles     []string
	ImportMap  map[string]string // from the path in an import to that of the package that it means
	DepOnly    bool              // only what was asked for imports it
	Module     *struct {
		Main      bool
		GoVersion string
	}
}

func (p *listed) own() bool { return p.Module != nil && p.Module.Main }

// check returns how many packages of the module it checked, and the errors in them.
func check(dir, platform string, tests bool, patterns []string) (int, error) {
	goos, goarch, _ := strings.Cut(platform, "/")
	sizes := types.SizesFor("gc", goarch)
	if goos == "" || sizes == nil {
		return 0, fmt.Errorf("crosscheck: %q is not OS/ARCH", platform)
	}
	// Dependencies come before what imports them.
	args := []string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,SFiles,ImportMap,DepOnly,Module"}
	if tests {
		args = append(args, "-test")
	}
	cmd := exec.Command("go", append(args, patterns...)...) //nolint:gosec,noctx // ends by itself
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	c := checker{sizes: sizes, files: token.NewFileSet(), checked: map[string]*types.Package{"unsafe": types.Unsafe}}
	for decoder := json.NewDecoder(out); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.errs = append(c.errs, err)
			break
		}
		c.take(&p)
	}
	if err := cmd.Wait(); err != nil {
		c.errs = append(c.errs, fmt.Errorf("crosscheck: go list for %s: %w", platform, err))
	}
	return c.own, errors.Join(c.errs...)
}

// checker is the work on one platform.
type checker struct {
	sizes   types.Sizes
	files   *token.FileSet
	checked map[string]*types.Package
	own     int
	errs    []error
}

// take checks a package. Of one outside of this module only the declarations are looked at.
func (c *checker) take(p *listed) {
	if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // what "go test" writes itself
		return
	}
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(c.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			c.errs = append(c.errs, err)
			return
		}
		parsed = append(parsed, f)
	}
	config := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if to, found := p.ImportMap[path]; found {
				path = to
			}
			if pkg := c.checked[path]; pkg != nil {
				return pkg, nil
			}
			return nil, fmt.Errorf("%s is not listed before %s", path, p.ImportPath)
		}),
		Sizes: c.sizes, IgnoreFuncBodies: !p.own(), Error: func(err error) { c.errs = append(c.errs, err) },
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // the rest says which test it is compiled for
	pkg, _ := config.Check(path, c.files, parsed, nil)
	c.checked[p.ImportPath] = pkg
	if !p.own() {
		return
	}
	if !p.DepOnly {
		c.own++
	}
	if len(p.SFiles) == 0 {
		for _, f := range parsed {
			c.bodies(f)
		}
	}
}

// bodies looks for functions without one.
func (c *checker) bodies(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body == nil {
			c.errs = append(c.errs, fmt.Errorf("%s: %s has no body, and no assembly for this platform exists",
				c.files.Position(fn.Pos()), fn.Name.Name))
		}
	}
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
