// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rootRequires are the modules that a user of the library gets, with those of its tests.
var rootRequires = []string{
	"golang.org/x/sys", "github.com/google/go-cmp", "go.uber.org/goleak", "pgregory.net/rapid", "github.com/anishathalye/porcupine",
}

// TestModules: go.work lists the modules that the other rules look at, the root requires few others, and no go.mod has a replacement,
// with which "go install" would refuse it.
func TestModules(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "modules"), "nested").Output()
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.FieldsSeq(string(out)) {
		listed = append(listed, strings.TrimPrefix(line, "./"))
	}
	if !slices.Equal(listed, nested) {
		t.Errorf("go.work lists %v, the rules look at %v: make nested in this package the same", listed, nested)
	}
	for _, dir := range append([]string{"."}, nested...) {
		text, err := os.ReadFile(filepath.Join(root, dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
			if len(fields) > 0 && fields[0] == "replace" {
				t.Errorf("%s/go.mod has a replacement: put it into go.work", dir)
			}
			if dir == "." && len(fields) >= 2 && strings.HasPrefix(fields[1], "v") && !slices.Contains(rootRequires, fields[0]) {
				t.Errorf("go.mod requires %s: what only the command or the benchmarks need belongs into their modules", fields[0])
			}
		}
	}
}

// heavy are modules that a program which imports a library package must not get: they belong to modules of their own.
var heavy = []string{
	"go.etcd.io/", "google.golang.org/", "go.uber.org/zap", "go.opentelemetry.io/", module + "/store/cluster", module + "/cmd/",
}

// TestLibraryWithoutRaft: who imports store, group, launch or any other package of the root compiles neither raft nor what it needs.
func TestLibraryWithoutRaft(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(string(out))
	for _, pkg := range all {
		if slices.ContainsFunc(heavy, func(prefix string) bool { return strings.HasPrefix(pkg, prefix) }) {
			t.Errorf("a package of the library needs %s", pkg)
		}
	}
	for _, needed := range []string{module + "/store", module + "/group", module + "/launch"} {
		if !slices.Contains(all, needed) {
			t.Errorf("%s was not looked at", needed)
		}
	}
}
