// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// mutant is a mistake that can be switched on.
type mutant struct {
	name, what string
	finders    [][]string // the tests that find it, with their flags
	changes    []change
}

// change replaces lines of a function or a type.
type change struct {
	place    string // the function's "name" or "Type.name", or the type's name
	old, new []string
}

// parseTable reads a file of mutants.
func parseTable(text string) (all []*mutant, err error) {
	var last *mutant
	for i, line := range strings.Split(text, "\n") {
		key, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.TrimSpace(line) == "" || line[0] == '#':
		case key == "mutant":
			name, what, _ := strings.Cut(rest, ": ")
			last = &mutant{name: name, what: what}
			all = append(all, last)
		case last == nil:
			return nil, fmt.Errorf("line %d stands before the first mutant", i+1)
		case key == "found" && strings.HasPrefix(rest, "by "):
			last.finders = append(last.finders, strings.Fields(rest)[1:])
		case key == "in":
			last.changes = append(last.changes, change{place: rest})
		case len(last.changes) > 0 && line[0] == '-':
			c := &last.changes[len(last.changes)-1]
			if len(c.new) > 0 {
				last.changes = append(last.changes, change{place: c.place})
				c = &last.changes[len(last.changes)-1]
			}
			c.old = append(c.old, line[1:])
		case len(last.changes) > 0 && line[0] == '+':
			c := &last.changes[len(last.changes)-1]
			c.new = append(c.new, line[1:])
		default:
			return nil, fmt.Errorf("line %d is not part of a mutant: %s", i+1, line)
		}
	}
	return all, checkTable(all, text)
}

// checkTable reports a mutant that nothing switches on.
func checkTable(all []*mutant, text string) error {
	if len(all) == 0 {
		return errors.New("it has no mutants")
	}
	for _, m := range all {
		if !strings.Contains(text, "mutants."+m.name) {
			return fmt.Errorf("no change of the mutant %s mentions mutants.%s", m.name, m.name)
		}
	}
	return nil
}

// edit is a change at its place in a file.
type edit struct {
	at, lines int
	new       []string
}

// apply returns the sources, by file name, that have changes, with these.
func apply(sources map[string][]byte, all []*mutant) (map[string][]byte, error) {
	found, err := places(sources)
	if err != nil {
		return nil, err
	}
	edits := map[string][]edit{}
	for _, m := range all {
		for _, c := range m.changes {
			f, known := found[c.place]
			if !known {
				return nil, fmt.Errorf("mutant %s: the package has no function or type %s", m.name, c.place)
			}
			at, unfit := f.find(c.old)
			if unfit != nil {
				return nil, fmt.Errorf("mutant %s: %s: %w", m.name, c.place, unfit)
			}
			edits[f.file] = append(edits[f.file], edit{at, len(c.old), c.new})
		}
	}
	changed := map[string][]byte{}
	for file, of := range edits {
		if changed[file], err = rewrite(sources[file], of); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return changed, nil
}

// rewrite makes the changes of one file, from its end to its beginning.
func rewrite(source []byte, edits []edit) ([]byte, error) {
	lines := strings.Split(string(source), "\n")
	slices.SortFunc(edits, func(a, b edit) int { return b.at - a.at })
	for i, e := range edits {
		if i > 0 && e.at+e.lines > edits[i-1].at {
			return nil, fmt.Errorf("two mutants change line %d: write them as one change", edits[i-1].at+1)
		}
		lines = slices.Replace(lines, e.at, e.at+e.lines, e.new...)
	}
	return []byte(strings.Join(lines, "\n")), nil
}

// place is where a function or a type stands.
type place struct {
	file  string
	first int // the index of its first line
	lines []string
}

// places finds the functions and the types of a package.
func places(sources map[string][]byte) (map[string]place, error) {
	all := map[string]place{}
	for file, source := range sources {
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		lines := strings.Split(string(source), "\n")
		for _, d := range tree.Decls {
			first, last := set.Position(d.Pos()).Line-1, set.Position(d.End()).Line
			all[placeName(d)] = place{file, first, lines[first:last]}
		}
	}
	return all, nil
}

// placeName is the name that a table has for a declaration.
func placeName(d ast.Decl) string {
	f, ok := d.(*ast.FuncDecl)
	if !ok {
		return typeName(d)
	}
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

func typeName(d ast.Decl) string {
	if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
		return g.Specs[0].(*ast.TypeSpec).Name.Name //nolint:errcheck,forcetypeassert // by the token
	}
	return ""
}

// find returns the line at which some lines stand, whatever their white space.
func (f place) find(lines []string) (int, error) {
	if len(lines) == 0 {
		return 0, errors.New("a change has no line that begins with -")
	}
	at := -1
	for i := range f.lines[:max(len(f.lines)-len(lines)+1, 0)] {
		if !slices.EqualFunc(f.lines[i:i+len(lines)], lines, sameLine) {
			continue
		}
		if at >= 0 {
			return 0, fmt.Errorf("the line %q stands there twice: add the next one", strings.TrimSpace(lines[0]))
		}
		at = f.first + i
	}
	if at < 0 {
		return 0, fmt.Errorf("the line %q does not stand there any more: change the mutant with the source", strings.TrimSpace(lines[0]))
	}
	return at, nil
}

func sameLine(a, b string) bool { return slices.Equal(strings.Fields(a), strings.Fields(b)) }

// switches is the source of the file that the copy of a package has in addition: it reads which mutants are on.
func switches(pkg string, all []*mutant) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "package %s\n\nimport (\n\t\"os\"\n\t\"strings\"\n)\n\nvar mutants struct {\n", pkg)
	for _, m := range all {
		fmt.Fprintf(&b, "\t%s bool\n", m.name)
	}
	fmt.Fprintf(&b, "}\n\nfunc init() {\n\tfor name := range strings.SplitSeq(os.Getenv(%q), \",\") {\n\t\tswitch name {\n", variable)
	for _, m := range all {
		fmt.Fprintf(&b, "\t\tcase %q:\n\t\t\tmutants.%s = true\n", m.name, m.name)
	}
	b.WriteString("\t\tdefault:\n\t\t\tpanic(\"unknown mutant \" + name)\n\t\t}\n\t}\n}\n")
	return b.Bytes()
}
