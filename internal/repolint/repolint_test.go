// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package repolint holds the rules of this repository as tests: who may import whom, how long a file may be, what every
// file and package must say.
package repolint

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/cohort-dist/cohort"

// layers is the allowed import graph, bottom first. A package may import packages of the lines above its own, and those of its own line
// that match an earlier entry, or the same entry if that is a group ("internal/rpc/*"). The go command refuses cycles inside a group.
// "*" stands for everything below a folder. Tests may import anything.
const layers = `
.
observe
internal/util/*
internal/sys/* internal/observe/* observe/progress
internal/security/*
tensor
internal/tensor/* tensor/safetensors
internal/store/* store store/filestore store/tcpstore
rendezvous
rpc/py
internal/python/*
autograd autograd/nn optim
internal/group/* group
autograd/ddp
internal/rpc/* rpc rpc/operators
internal/autograd/* autograd/distautograd optim/remote
world
internal/diagnose/*
internal/launch/launchcore
elastic internal/launch/* launch
observe/otel
store/cluster/internal/* store/cluster
cmd/cohort/internal/* cmd/cohort
`

// pure lists the packages that do no I/O and start no goroutine: see pureForbids.
const pure = `
cmd/cohort/internal/jobfile store/cluster/internal/membercore internal/autograd/backwardcore internal/diagnose/hangwatch internal/diagnose/postmortem
internal/diagnose/torchdump internal/diagnose/verdict internal/group/collective internal/group/gloo/gloomatch
internal/group/gloo/gloowire internal/group/gloo/torchcaps internal/group/native/nativewire internal/group/opsched
internal/group/subgroup internal/launch/launchcore internal/python/pickle internal/rpc/nop
internal/rpc/rrefcore internal/rpc/worldcore internal/security/jobcert internal/security/jobtoken
internal/store/keytable internal/store/storecore internal/store/storewire internal/tensor/reduce internal/tensor/sparseops internal/util/ilist internal/util/ranklist
internal/util/tombstone rpc/py
`

// pureForbids lists what a pure package may not import: it decides, others act.
var pureForbids = []string{"net", "os", "os/exec", "time", "syscall", "golang.org/x/sys/unix", "log/slog"}

// pureMayUse: time.Duration in a request is a number, not a clock.
var pureMayUse = map[string][]string{
	"internal/group/collective": {"time"}, "internal/store/storecore": {"time"},
	"internal/rpc/rrefcore": {"time"}, "internal/rpc/worldcore": {"time"}, "internal/autograd/backwardcore": {"time"},
	"internal/security/jobcert": {"time"}, "internal/security/jobtoken": {"time"}, "store/cluster/internal/membercore": {"time"},
	"internal/launch/launchcore": {"time"}, "internal/diagnose/verdict": {"time"}, "internal/diagnose/hangwatch": {"time"},
}

// outside the graph: helpers of tests and of the build, benchmarks, examples.
var outside = []string{
	"internal/testing/", "internal/devtools/", "internal/repolint", "internal/store/storewire/storecapture",
	"internal/rpc/tensorpipe/tpcapture",
	"internal/group/transport/memtransport", "cmd/cohort/internal/termtest", "store/storetest", "interop/", "bench/", "examples/",
}

// place is where a package stands in the rule: its line, and the entry of the line that it matches.
type place struct {
	line, entry int
	group       bool
}

// places finds the place of a package; a literal entry wins over a group.
func places(pkg string) (at place, found bool) {
	n := 0
	for line := range strings.Lines(strings.TrimSpace(layers)) {
		n++
		for i, entry := range strings.Fields(line) {
			if entry == pkg {
				return place{n, i, false}, true
			}
			if dir, group := strings.CutSuffix(entry, "/*"); group && strings.HasPrefix(pkg, dir+"/") {
				at, found = place{n, i, true}, true
			}
		}
	}
	return at, found
}

// mayImport reports whether the rule allows an import.
func mayImport(from, to place) bool {
	if from.line != to.line {
		return from.line > to.line
	}
	return from.entry > to.entry || from.entry == to.entry && from.group
}

type source struct {
	file  string // relative to the repository
	pkg   string // import path below the module, "." for the root
	test  bool
	ast   *ast.File
	lines int
}

// nested are the modules of the workspace beside the root.
var nested = []string{"bench", "cmd/cohort", "observe/otel", "store/cluster"}

func sources(t *testing.T) []source {
	t.Helper()
	all, err := readSources()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// readSources reads the files once for all rules.
var readSources = sync.OnceValues(func() ([]source, error) {
	root := filepath.Join("..", "..")
	var all []source
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel == "tools" || rel == "bin" || (strings.HasPrefix(d.Name(), ".") && rel != ".") || d.Name() == "testdata" {
				return fs.SkipDir
			}
			if rel != "." {
				if _, missing := os.Stat(filepath.Join(name, "go.mod")); missing == nil && !slices.Contains(nested, rel) {
					return fs.SkipDir // a module that is not part of the workspace
				}
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		all = append(all, source{rel, path.Dir(rel), strings.HasSuffix(rel, "_test.go"), f, strings.Count(string(text), "\n")})
		return nil
	})
	return all, err
})

// publicPackages lists the packages that other modules can import and are meant to.
func publicPackages(t *testing.T) []string {
	t.Helper()
	var pkgs []string
	for _, s := range sources(t) {
		top, _, _ := strings.Cut(s.pkg, "/")
		if !s.test && !slices.Contains([]string{"internal", "interop", "examples", "bench", "cmd"}, top) &&
			!strings.Contains(s.pkg, "/internal/") {
			pkgs = append(pkgs, s.pkg)
		}
	}
	slices.Sort(pkgs)
	return slices.Compact(pkgs)
}

func isOutside(pkg string) bool {
	return slices.ContainsFunc(outside, func(o string) bool { return pkg == o || (strings.HasSuffix(o, "/") && strings.HasPrefix(pkg, o)) })
}

func TestImports(t *testing.T) {
	t.Parallel()
	pures := strings.Fields(pure)
	for _, s := range sources(t) {
		if s.test || isOutside(s.pkg) {
			continue
		}
		from, ok := places(s.pkg)
		if !ok {
			t.Errorf("%s: package %q is in no line of the rule: add it to layers in this test", s.file, s.pkg)
			continue
		}
		for _, spec := range s.ast.Imports {
			target := strings.Trim(spec.Path.Value, `"`)
			if slices.Contains(pures, s.pkg) && slices.Contains(pureForbids, target) && !slices.Contains(pureMayUse[s.pkg], target) {
				t.Errorf("%s: pure package %q imports %q: return what is to be done, and let the caller do it", s.file, s.pkg, target)
			}
			below, ours := strings.CutPrefix(target, module)
			if !ours {
				continue
			}
			below = strings.TrimPrefix(below, "/")
			if below == "" {
				below = "."
			}
			if to, known := places(below); !known || !mayImport(from, to) {
				t.Errorf("%s: %q may not import %q: imports lead to lines above only; move what both need down, or pass it in",
					s.file, s.pkg, below)
			}
		}
	}
	for _, p := range pures {
		if _, err := os.Stat(filepath.Join("..", "..", p)); err != nil {
			t.Errorf("the list of pure packages names %s, which does not exist: take it out", p)
		}
	}
}

// TestMayImport: the rule finds what it is for.
func TestMayImport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"store", "internal/store/storecore", true},
		{"internal/store/storecore", "store", false},
		{"group", "internal/rpc/rpcwire", false},
		{"rpc", "group", true},
		{"internal/rpc/rpcwire", "internal/rpc/nop", true},
		{"rpc", "rpc", false},
		{"launch", "cmd/cohort", false},
		{"internal/util/ilist", "observe", true},
		{"internal/util/ilist", "internal/sys/cgroup", false},
	} {
		from, ok1 := places(c.from)
		to, ok2 := places(c.to)
		if !ok1 || !ok2 || mayImport(from, to) != c.want {
			t.Errorf("%s imports %s: want %v", c.from, c.to, c.want)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if s.lines > 800 {
			t.Errorf("%s has %d lines; the hard limit is 800: split it by ideas", s.file, s.lines)
		}
		header := s.ast.Comments
		if len(header) == 0 || !strings.Contains(header[0].Text(), "Copyright The cohort Authors") {
			t.Errorf("%s: the licence header is missing: begin the file with the two lines that the others have", s.file)
		}
		documented[s.pkg] = documented[s.pkg] || s.ast.Doc != nil
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %q has no doc comment: say above one package clause what it is for", pkg)
		}
	}
}

// TestNoMachinePaths keeps paths of the machine that something was written on out of the repository.
func TestNoMachinePaths(t *testing.T) {
	t.Parallel()
	forbidden := []string{"/wo" + "rk/", "/ro" + "ot/", "../sha" + "red"}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" && name != root || d.Name() == "bin" || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".md", ".sh", ".py", ".yml", ".mod", ""}, filepath.Ext(name)) {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			for _, bad := range forbidden {
				if strings.Contains(lines.Text(), bad) {
					t.Errorf("%s:%d names %s, a path of one machine: write it relative to the repository", name, n, bad)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLibraryDependencies(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if s.test || isOutside(s.pkg) || slices.ContainsFunc(nested,
			func(dir string) bool { return strings.HasPrefix(s.pkg+"/", dir+"/") }) {
			continue
		}
		for _, spec := range s.ast.Imports {
			target := strings.Trim(spec.Path.Value, `"`)
			host, _, _ := strings.Cut(target, "/")
			if strings.Contains(host, ".") && !strings.HasPrefix(target, module) && !strings.HasPrefix(target, "golang.org/x/sys/") {
				t.Errorf("%s imports %s: a library needs the standard library and golang.org/x/sys only: write the part "+
					"that is needed, or move its user into a module of its own", s.file, target)
			}
		}
	}
}
