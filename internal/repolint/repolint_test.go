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
	"testing"
)

const module = "github.com/cohort-dist/cohort"

// layers is the allowed import graph, bottom first. A package may import packages of the lines above its own, and those
// of its own line that stand before it. "*" stands for everything below a folder. Tests may import anything.
//
// A line that starts with "pure" holds packages that do no I/O and start no goroutine: see pureForbids.
const layers = `
      internal/standin internal/moment internal/invariants internal/pystack internal/control internal/corewait internal/turn internal/ticker internal/ctxdial
pure: internal/gostack internal/pytemplate
      dist
      observe internal/aside
pure: rpc/py internal/linked internal/lineup internal/islands internal/tombs internal/ranklist internal/grid internal/storenum internal/marks internal/keytable internal/unsent internal/polls internal/pace internal/wire/tcpstore internal/storecore internal/nop internal/pickle
      tensor internal/storeop
pure: internal/reduce internal/coll internal/sched internal/launchcore internal/postmortem
      internal/cgroup internal/kernlog internal/bundle internal/joblog internal/keeper internal/agentevents internal/numabind internal/oomkill internal/program internal/rundir internal/signame
      internal/blas internal/tmath
pure: internal/coo
      autograd tensor/safetensors autograd/nn optim
      internal/link internal/link/*
      internal/gloo/presence
pure: internal/gloo/torch internal/collargs
      internal/recycle
      internal/fdlisten internal/storeserve internal/storedial store store/filestore store/tcpstore internal/nodehost internal/hostkey
      internal/muster elastic
      internal/intake internal/cohortwire internal/tensorpipe internal/pygo internal/gofunc internal/rpcprof internal/tensortable internal/rpcwire internal/pyexc
pure: internal/rrefcore internal/worldcore internal/backcore internal/gloo/wire internal/gloo/match internal/native/wire
      internal/gloo internal/groupnames internal/shm/* internal/shm internal/native/* internal/native internal/recorder
      internal/form
      internal/portowner rendezvous
      group
      autograd/ddp
      internal/aten internal/rpcseam internal/rpcworld internal/rpcplace internal/quietlog internal/rpcasked
      internal/rpclink internal/rpcref internal/rpccall internal/rpcserve
      rpc rpc/operators
      autograd/distautograd optim/remote
      .
pure: internal/frdump internal/verdict internal/hangwatch
      internal/ncclras
      internal/jobscan
      internal/nodenews launch
pure: internal/jobfile
      internal/runflags internal/tui internal/cli/command internal/cli/tied internal/cli/storecmd internal/cli/rpccmd internal/cli/benchcmd internal/cli/democmd internal/cli cmd/*
`

// pureForbids lists what a pure package may not import: it decides, others act.
var pureForbids = []string{"net", "os", "os/exec", "time", "syscall", "golang.org/x/sys/unix", "log/slog"}

// pureExceptions: time.Duration in a request is a number, not a clock.
var pureExceptions = map[string][]string{
	"internal/coll": {"time"}, "internal/storecore": {"time"}, "internal/pace": {"time"}, "internal/rrefcore": {"time"}, "internal/worldcore": {"time"}, "internal/backcore": {"time"}, "internal/launchcore": {"time"},
	"internal/verdict":   {"time"},
	"internal/hangwatch": {"time"},
}

// outside the graph: helpers of tests and of the build, benchmarks, examples.
var outside = []string{"internal/torchtest", "internal/termtest", "internal/freeport", "internal/testlog", "internal/testmem", "internal/testdisk", "internal/testwait", "internal/testprog", "internal/testranks", "internal/testnames", "internal/testcount", "internal/compat", "internal/sbom", "internal/crosscheck", "internal/conformance/", "internal/conformance", "internal/faultnet", "internal/momenttest", "internal/momenttest/", "internal/wire/tcpstore/capture", "internal/tensorpipe/capture", "store/storetest", "interop/", "bench/", "examples/"}

type layer struct {
	pattern string
	pure    bool
}

func parseLayers() []layer {
	var all []layer
	for line := range strings.Lines(layers) {
		rest, pure := strings.CutPrefix(strings.TrimSpace(line), "pure:")
		for p := range strings.FieldsSeq(rest) {
			all = append(all, layer{p, pure})
		}
	}
	return all
}

func (l layer) holds(pkg string) bool {
	if dir, found := strings.CutSuffix(l.pattern, "/*"); found {
		return strings.HasPrefix(pkg, dir+"/")
	}
	return l.pattern == pkg
}

func find(all []layer, pkg string) int {
	// The most exact line wins: a literal name before a pattern.
	for i, l := range all {
		if l.pattern == pkg {
			return i
		}
	}
	return slices.IndexFunc(all, func(l layer) bool { return l.holds(pkg) })
}

type source struct {
	file  string // relative to the repository
	pkg   string // import path below the module, "." for the root
	test  bool
	ast   *ast.File
	lines int
}

func sources(t *testing.T) []source {
	t.Helper()
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
				if _, missing := os.Stat(filepath.Join(name, "go.mod")); missing == nil {
					return fs.SkipDir // a nested module
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
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// publicPackages lists the packages that other modules can import and are meant to.
func publicPackages(t *testing.T) []string {
	t.Helper()
	var pkgs []string
	for _, s := range sources(t) {
		top, _, _ := strings.Cut(s.pkg, "/")
		if !s.test && !slices.Contains([]string{"internal", "interop", "examples", "bench", "cmd"}, top) {
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
	all := parseLayers()
	for _, s := range sources(t) {
		if s.test || isOutside(s.pkg) {
			continue
		}
		at := find(all, s.pkg)
		if at < 0 {
			t.Errorf("%s: package %q is in no layer; add it to the rule in this test", s.file, s.pkg)
			continue
		}
		for _, spec := range s.ast.Imports {
			target := strings.Trim(spec.Path.Value, `"`)
			if all[at].pure && slices.Contains(pureForbids, target) && !slices.Contains(pureExceptions[s.pkg], target) {
				t.Errorf("%s: pure package %q imports %q", s.file, s.pkg, target)
			}
			below, ours := strings.CutPrefix(target, module)
			if !ours {
				continue
			}
			below = strings.TrimPrefix(below, "/")
			if below == "" {
				below = "."
			}
			to := find(all, below)
			if to < 0 || to > at || (to == at && below == s.pkg) {
				t.Errorf("%s: %q may not import %q: arrows point down only", s.file, s.pkg, below)
			}
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
			t.Errorf("%s: the licence header is missing", s.file)
		}
		documented[s.pkg] = documented[s.pkg] || s.ast.Doc != nil
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %q has no doc comment", pkg)
		}
	}
}

// mostLines is how long a package may be without its tests. What passes this limit has to be taken apart, not shortened.
const mostLines = 4000

func TestPackages(t *testing.T) {
	t.Parallel()
	lines := map[string]int{}
	for _, s := range sources(t) {
		if !s.test {
			lines[s.pkg] += s.lines
		}
	}
	for pkg, n := range lines {
		if n > mostLines {
			t.Errorf("package %q has %d lines; the limit is %d: move something that stands on its own into a package", pkg, n, mostLines)
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
					t.Errorf("%s:%d names %s", name, n, bad)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// commandPackages may import what only a program needs: flags, a terminal, metrics. Libraries may not, since whoever imports one
// gets all of it.
var commandPackages = []string{"internal/cli", "internal/tui", "internal/runflags", "internal/jobfile", "cmd/"}

func TestLibraryDependencies(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		command := slices.ContainsFunc(commandPackages, func(c string) bool { return strings.HasPrefix(s.pkg+"/", c) })
		if s.test || command || isOutside(s.pkg) {
			continue
		}
		for _, spec := range s.ast.Imports {
			target := strings.Trim(spec.Path.Value, `"`)
			host, _, _ := strings.Cut(target, "/")
			if strings.Contains(host, ".") && !strings.HasPrefix(target, module) && !strings.HasPrefix(target, "golang.org/x/sys/") {
				t.Errorf("%s imports %s: a library needs the standard library and golang.org/x/sys only", s.file, target)
			}
		}
	}
}
