// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pathcount

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cohort-dist/cohort/"

// path is what an operation enters.
type path struct {
	Functions []function // by file, and in a file as they stand there
	Files     int
	Lines     int // of the functions
}

// function is a function that was entered. What runs in a function literal counts for the function around it.
type function struct {
	File  string // relative to the module
	Name  string // with the type of its receiver
	Lines int
}

// MeanLines is the mean length of the functions.
func (p *path) MeanLines() float64 { return float64(p.Lines) / float64(max(len(p.Functions), 1)) }

// String lists the functions by file.
func (p *path) String() string {
	var b strings.Builder
	file := ""
	for _, f := range p.Functions {
		if f.File != file {
			file = f.File
			fmt.Fprintf(&b, "\n%s:", file)
		}
		fmt.Fprintf(&b, " %s(%d)", f.Name, f.Lines)
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// runs is how often a program is run. On a machine with much else to do an operation may take a longer path, such as that of a read that
// has to be watched since it takes long: the shortest path counts.
const runs = 5

// measure builds the program in a folder of the module with coverage of the whole module, runs it, and returns the path of its operation.
func measure(tb testing.TB, folder string) *path {
	tb.Helper()
	program := filepath.Join(tb.TempDir(), "program")
	command(tb, nil, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"...", "-o", program, module+folder)
	shortest := measureOnce(tb, program)
	for range runs - 1 {
		if path := measureOnce(tb, program); len(path.Functions) < len(shortest.Functions) {
			shortest = path
		}
	}
	return shortest
}

// measureOnce runs a program and returns the path of its operation.
func measureOnce(tb testing.TB, program string) *path {
	tb.Helper()
	counters := tb.TempDir()
	profile := filepath.Join(tb.TempDir(), "profile")
	command(tb, []string{folderVariable + "=" + counters, "GOCOVERDIR=" + tb.TempDir()}, program)
	command(tb, nil, "go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+profile)
	path, err := read(profile, command(tb, nil, "go", "list", "-f", "{{.Dir}}", strings.TrimSuffix(module, "/")))
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// command runs a command to its end and returns what it has written.
func command(tb testing.TB, environment []string, name string, args ...string) string {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), name, args...)
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		tb.Fatalf("%s: %v\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// read finds the functions with a block that ran in a profile of the module at root.
func read(profile, root string) (*path, error) {
	ran, err := blocks(profile)
	if err != nil {
		return nil, err
	}
	p := &path{}
	for file, lines := range ran {
		functions, err := entered(root, file, lines)
		if err != nil {
			return nil, err
		}
		if len(functions) > 0 {
			p.Files++
			p.Functions = append(p.Functions, functions...)
		}
	}
	for _, f := range p.Functions {
		p.Lines += f.Lines
	}
	slices.SortStableFunc(p.Functions, func(a, b function) int { return strings.Compare(a.File, b.File) })
	return p, nil
}

// blocks returns by file, relative to the module, the lines in which blocks begin that ran. The module's helpers of tests are left out, and
// blocks without a statement: a function that does nothing, such as a failpoint without its build tag, is not in the program.
func blocks(profile string) (map[string][]int, error) {
	text, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = text.Close() }()
	ran := map[string][]int{}
	for lines := bufio.NewScanner(text); lines.Scan(); {
		// file:line.column,line.column statements count
		name, block, found := strings.Cut(strings.TrimPrefix(lines.Text(), module), ":")
		if !found || name == "mode" || strings.HasSuffix(block, " 0") || strings.HasPrefix(name, "internal/testing/") {
			continue
		}
		var line, column, lastLine, lastColumn, statements int
		if _, err := fmt.Sscanf(block, "%d.%d,%d.%d %d", &line, &column, &lastLine, &lastColumn, &statements); err != nil {
			return nil, fmt.Errorf("profile %s: %q: %w", profile, block, err)
		}
		if statements > 0 {
			ran[name] = append(ran[name], line)
		}
	}
	return ran, nil
}

// entered returns the functions of a file around the given lines.
func entered(root, file string, lines []int) (all []function, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, filepath.Join(root, filepath.FromSlash(file)), nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range parsed.Decls {
		f, is := d.(*ast.FuncDecl)
		if !is {
			continue
		}
		first, last := files.Position(f.Pos()).Line, files.Position(f.End()).Line
		if slices.ContainsFunc(lines, func(line int) bool { return first <= line && line <= last }) {
			all = append(all, function{File: file, Name: nameOf(f), Lines: last - first + 1})
		}
	}
	return all, nil
}

// nameOf is a function's name with the type of its receiver.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	if pointer, is := t.(*ast.StarExpr); is {
		t = pointer.X
	}
	if generic, is := t.(*ast.IndexExpr); is {
		t = generic.X
	}
	if name, is := t.(*ast.Ident); is {
		return name.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
