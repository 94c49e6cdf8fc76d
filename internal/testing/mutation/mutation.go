// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	tablePath = "testdata/mutants.txt"
	// variable names the mutants that are on in a process of the mutated test binary.
	variable = "COHORT_MUTANTS"
)

// Main runs the tests of a package that uses With or Found, for its TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	Cleanup()
	return code
}

// Cleanup is for a TestMain that cannot call Main: it removes what was built.
func Cleanup() {
	if built.dir != "" {
		if err := os.RemoveAll(built.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// On reports whether this process was started by With or Found with a mutant.
func On(name string) bool { return slices.Contains(strings.Split(os.Getenv(variable), ","), name) }

// With reports whether this process has the mutants on that a test needs. If not, it runs the test in one that has them,
// and the caller has nothing left to do:
//
//	if !mutation.With(t, "NoGrace") {
//		return
//	}
func With(t *testing.T, mutants ...string) bool {
	t.Helper()
	if os.Getenv(variable) == strings.Join(mutants, ",") {
		return true
	}
	out, passed := run(t, mutants, t.Name(), givenFlags()...)
	if t.Log(out); !passed {
		t.Fail()
	}
	return false
}

// Found tests that the tests named in the package's table find every mutant. With the others, they run in parallel.
func Found(t *testing.T) {
	t.Helper()
	all, err := readTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		for _, finder := range m.finders {
			t.Run(m.name+" "+finder[0], func(t *testing.T) {
				t.Parallel()
				out, passed := run(t, []string{m.name}, finder[0], finder[1:]...)
				if passed {
					t.Fatalf("%s passes although %s:\n%s", finder[0], m.what, out)
				}
				t.Logf("%s:\n%s", m.what, out)
			})
		}
	}
	t.Logf("count: mutants: %d", len(all))
}

// givenFlags are those of the package's own flags that this process was given.
func givenFlags() (args []string) {
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

// run runs one test of the mutated package, and returns what it logs.
func run(t *testing.T, mutants []string, test string, args ...string) (out string, passed bool) {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(test), "/", "$/^") + "$"
	//nolint:gosec // what was built here
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"-test.v", "-test.timeout=10m", "-test.run", pattern}, args...)...)
	cmd.Env = append(os.Environ(), variable+"="+strings.Join(mutants, ","))
	raw, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	result := "--- FAIL: "
	if err == nil {
		result = "--- PASS: "
	}
	if !strings.Contains(string(raw), result+test) {
		t.Fatalf("%s did not run to its end:\n%s", test, raw)
	}
	return strings.TrimSpace(frame.ReplaceAllString(string(raw), "")), err == nil
}

// frame is what the package testing writes around what a test logs: here it would be taken for the result of a test of this process.
var frame = regexp.MustCompile(`(?m)^(=== | *--- |PASS$|FAIL$).*\n?`)

// built is the mutated test binary of this package; the first test that needs it builds it.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func build() (binary string, err error) {
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "mutants"); built.err == nil {
			built.err = buildIn(built.dir)
		}
	})
	return binaryIn(built.dir), built.err
}

func binaryIn(dir string) string {
	name := filepath.Join(dir, "mutants.test")
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return name
}

// buildIn builds the mutated test binary of the package in the working directory.
func buildIn(dir string) error {
	all, err := readTable()
	if err != nil {
		return err
	}
	sources, pkg, err := readSources()
	if err != nil {
		return err
	}
	changed, err := apply(sources, all)
	if err != nil {
		return fmt.Errorf("%s: %w", tablePath, err)
	}
	changed["mutants_switches.go"] = switches(pkg, all)
	overlay, err := writeOverlay(dir, changed)
	if err != nil {
		return err
	}
	//nolint:gosec,noctx // ends by itself
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binaryIn(dir), ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build with the mutants of %s: %w\n%s", tablePath, err, out)
	}
	return nil
}

func readTable() ([]*mutant, error) {
	text, err := os.ReadFile(tablePath)
	if err != nil {
		return nil, err
	}
	all, err := parseTable(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tablePath, err)
	}
	return all, nil
}

// readSources reads the sources of the package in the working directory, without its tests.
func readSources() (sources map[string][]byte, pkg string, err error) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		return nil, "", err
	}
	sources = map[string][]byte{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if sources[name], err = os.ReadFile(name); err != nil { //nolint:gosec // a file of the package under test
			return nil, "", err
		}
		tree, err := parser.ParseFile(token.NewFileSet(), name, sources[name], parser.PackageClauseOnly)
		if err != nil {
			return nil, "", err
		}
		pkg = tree.Name.Name
	}
	return sources, pkg, nil
}

// writeOverlay writes changed files beside the originals' names, as the go command's option -overlay wants it.
func writeOverlay(dir string, changed map[string][]byte) (overlay string, err error) {
	here, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, source := range changed {
		replace[filepath.Join(here, name)] = filepath.Join(dir, name)
		if err = os.WriteFile(filepath.Join(dir, name), source, 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}
