// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command compat writes the table of docs/compatibility.md from the `go test -json` output of the interop tests: for
// every area and every installation of PyTorch, how many tests passed, failed, or need something that the build lacks.
//
//	make interop compat
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// areas names what the packages below interop test, in the order of the table. The tests of an area are those of its package, or
// those of it whose names begin with one of the prefixes.
var areas = []struct {
	pkg, name string
	tests     []string
}{
	{"store", "`TCPStore`: server, client, command line", nil},
	{"store", "sharded jobs: distributed checkpoints, DTensor", []string{"TestServerSharded"}},
	{"filestore", "`FileStore`", nil},
	{"rendezvous", "rendezvous", nil},
	{"gloo", "`gloo` wire, all collectives", nil},
	{"group", "process groups", nil},
	{"group", "split, merged and unsorted groups", []string{"TestSplit", "TestMesh"}},
	{"group", "lazy connections", []string{"TestLazy"}},
	{"group", "a step of FSDP2", []string{"TestFSDP"}},
	{"group", "members change without restarts (`reconfigure`)", []string{"TestReconfigure"}},
	{"reduce", "reductions, bit by bit", nil},
	{"wire", "pickles and messages of RPC", nil},
	{"rpc", "RPC, references", nil},
	{
		"rpc", "distributed autograd and optimizers",
		[]string{"TestAutograd", "TestSparseAutograd", "TestDataParallel", "TestDistributedOptimizer", "TestSparseAdam"},
	},
	{"rpcproof", "RPC: who may call whom", nil},
	{"worlds", "RPC: random worlds", nil},
	{"tensor", "tensors, printed and saved", nil},
	{"autograd", "gradients, optimizers", nil},
	{"ddp", "data parallelism", nil},
	{"examples", "examples and pages", nil},
	{
		"examples", "the coordinator, `cohort run --members`, `cohort coordinate`",
		[]string{"TestReconfigure", "TestLaunched", "TestCoordinator", "TestStoreDies"},
	},
	{"launch", "`cohort run`, `cohort why`", nil},
	{"pystack", "Python stacks from outside", nil},
}

const begin, end = "<!-- begin of what make compat writes -->\n", "<!-- end of what make compat writes -->\n"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: compat RESULTS.json PAGE.md")
	}
	results, err := os.Open(args[0]) //nolint:gosec // an argument of ours
	if err != nil {
		return fmt.Errorf("%w; make interop writes it", err)
	}
	defer results.Close()
	page, err := os.ReadFile(args[1]) //nolint:gosec // the same
	if err != nil {
		return err
	}
	t, err := read(results)
	if err != nil {
		return err
	}
	before, rest, ok1 := bytes.Cut(page, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no place for the table", args[1])
	}
	//nolint:gosec // a page for everybody
	return os.WriteFile(args[1], slices.Concat(before, []byte(begin), []byte(t.String()), []byte(end), after), 0o644)
}

// cell is an area on an installation.
type cell struct{ passed, failed, cannot, left int }

func (c cell) String() string {
	switch {
	case c == (cell{}):
		return "-"
	case c.failed > 0:
		return fmt.Sprintf("**%d failed**, %d passed", c.failed, c.passed)
	case c.passed == 0 && c.left == 0:
		return "the build cannot"
	}
	text := strconv.Itoa(c.passed)
	if c.cannot > 0 {
		text += fmt.Sprintf(" (the build cannot: %d)", c.cannot)
	}
	if c.left > 0 {
		text += fmt.Sprintf(" (left out: %d)", c.left)
	}
	return text
}

type table struct {
	about map[string]string          // by installation
	cells map[string]map[string]cell // by the name of the area and installation
}

type event struct{ Action, Package, Test, Output string }

// read counts the tests without subtests of their own, each for the installation that its name has ("TestX/torch-2.6/y"), or else for
// those that it says it uses.
func read(r io.Reader) (*table, error) {
	t := &table{map[string]string{}, map[string]map[string]cell{}}
	parents, cannot, ended := map[string]bool{}, map[string]bool{}, map[string]event{}
	uses := map[string][]string{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Test == "" {
			continue // what the go command says itself
		}
		id := e.Package + " " + e.Test
		switch e.Action {
		case "run":
			if at := strings.LastIndex(e.Test, "/"); at >= 0 {
				parents[e.Package+" "+e.Test[:at]] = true
			}
		case "output":
			if _, about, found := strings.Cut(e.Output, "installation "); found {
				name, text, _ := strings.Cut(strings.TrimSpace(about), ": ")
				t.about[name] = text
			}
			if _, name, found := strings.Cut(e.Output, "interop: uses torch-"); found {
				if name = strings.TrimSpace(name); !slices.Contains(uses[id], name) {
					uses[id] = append(uses[id], name)
				}
			}
			cannot[id] = cannot[id] || strings.Contains(e.Output, "this build cannot")
		case "pass", "fail", "skip":
			ended[id] = e
		}
	}
	for id, e := range ended {
		if parents[id] {
			continue
		}
		var names []string
		for part := range strings.SplitSeq(e.Test, "/") {
			if name, found := strings.CutPrefix(part, "torch-"); found {
				names = append(names, name)
			}
		}
		for test := e.Test; len(names) == 0 && test != "."; test = path.Dir(test) { // it, or the test that it is part of
			names = uses[e.Package+" "+test]
		}
		for _, name := range names {
			t.count(area(path.Base(e.Package), e.Test), name, e.Action, cannot[id])
		}
	}
	return t, lines.Err()
}

// area returns the name of a test's area: one that has its name, else that of its package.
func area(pkg, test string) string {
	name := pkg
	for _, a := range areas {
		switch {
		case a.pkg != pkg:
		case a.tests == nil:
			name = a.name
		case slices.ContainsFunc(a.tests, func(prefix string) bool { return strings.HasPrefix(test, prefix) }):
			return a.name
		}
	}
	return name
}

func (t *table) count(pkg, installation, action string, cannot bool) {
	if t.cells[pkg] == nil {
		t.cells[pkg] = map[string]cell{}
	}
	c := t.cells[pkg][installation]
	switch {
	case action == "pass":
		c.passed++
	case action == "fail":
		c.failed++
	case cannot:
		c.cannot++
	default:
		c.left++
	}
	t.cells[pkg][installation] = c
}

// String returns the table in Markdown.
func (t *table) String() string {
	names := slices.Sorted(maps.Keys(t.about))
	var b strings.Builder
	b.WriteString("| tests that passed |")
	for _, name := range names {
		b.WriteString(" " + t.about[name] + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(names)) + "\n")
	for _, a := range areas {
		if t.cells[a.name] == nil {
			continue
		}
		b.WriteString("| " + a.name + " |")
		for _, name := range names {
			b.WriteString(" " + t.cells[a.name][name].String() + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}
