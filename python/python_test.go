// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package python_test runs the Python half of cohort with every Python that is found here. They need neither PyTorch nor pip.
package python_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/internal/observe/progresspage"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// interpreter is a Python, on this system or in a folder that is entered by chroot.
type interpreter struct{ name, root string }

// interpreters finds them: on the PATH, those of pyenv, and those of the interop tests.
func interpreters(t *testing.T) []interpreter {
	t.Helper()
	var found []interpreter
	known := map[string]bool{}
	for minor := 8; minor < 20; minor++ {
		name := "python3." + strconv.Itoa(minor)
		places := []string{filepath.Join("/usr/bin", name)}
		if p, err := exec.LookPath(name); err == nil {
			places = append(places, p)
		}
		home, _ := os.UserHomeDir()
		below, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions", "*", "bin", name))
		for _, p := range append(below, places...) {
			if _, err := os.Stat(p); err == nil && !known[p] && works(t, p) {
				known[p] = true
				found = append(found, interpreter{p, ""})
			}
		}
	}
	for _, root := range []string{"/var/lib/torch-2.6", "/var/lib/torch-newest"} {
		if _, err := os.Stat(filepath.Join(root, "usr/bin/python3")); err == nil && os.Getuid() == 0 {
			found = append(found, interpreter{"/usr/bin/python3", root})
		}
	}
	return found
}

// works leaves out what only stands for a Python that is not installed.
func works(t *testing.T, program string) bool {
	t.Helper()
	return exec.CommandContext(t.Context(), program, "-c", "").Run() == nil
}

// each runs a test with every Python, with the folder of the package as that Python sees it.
func each(t *testing.T, test func(t *testing.T, script func(name string) *exec.Cmd)) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the page exists on Linux only")
	}
	all := interpreters(t)
	if len(all) == 0 {
		t.Skip("no Python 3.8 or later here")
	}
	for _, in := range all {
		t.Run(strings.Trim(strings.ReplaceAll(in.root+in.name, "/", "_"), "_"), func(t *testing.T) {
			t.Parallel()
			dir := "."
			if in.root != "" {
				dir = copied(t, filepath.Join(in.root, "tmp"))
			}
			dir, err := filepath.Abs(dir)
			if err != nil {
				t.Fatal(err)
			}
			dir = "/" + strings.TrimPrefix(strings.TrimPrefix(dir, in.root), "/")
			test(t, func(name string) *exec.Cmd {
				args := []string{in.name, "-W", "error", filepath.Join(dir, name), dir}
				if in.root != "" {
					args = append([]string{"chroot", in.root}, args...)
				}
				cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
				cmd.Dir = "/"
				return cmd
			})
		})
	}
}

// copied copies the package and the scripts into a new folder.
func copied(t *testing.T, into string) string {
	t.Helper()
	dir, err := os.MkdirTemp(into, "cohort-python-") //nolint:usetesting // within another root
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err = os.CopyFS(filepath.Join(dir, "cohort_dist"), os.DirFS("cohort_dist")); err != nil {
		t.Fatal(err)
	}
	if err = os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rank is a script that goes through stages.
type rank struct {
	out *bufio.Scanner
	in  io.Writer
}

// at waits for a stage and returns its process and what else was printed.
func (r rank) at(t *testing.T, stage string) (pid int, rest []string) {
	t.Helper()
	if !r.out.Scan() {
		t.Fatalf("the rank ended before %s", stage)
	}
	words := strings.Fields(r.out.Text())
	if len(words) < 2 || words[0] != stage {
		t.Fatalf("the rank is at %q, not at %s", words, stage)
	}
	pid, err := strconv.Atoi(words[1])
	if err != nil {
		t.Fatal(err)
	}
	return pid, words[2:]
}

func (r rank) goOn(t *testing.T) {
	t.Helper()
	if _, err := fmt.Fprintln(r.in); err != nil {
		t.Fatal(err)
	}
}

// sections lists those of the main thread, and how many threads are in one.
func sections(p progresspage.Page) (names []string, threads int) {
	for _, thread := range p.Threads {
		if int64(thread.ID) == int64(p.PID) {
			for _, s := range thread.Sections {
				names = append(names, s.Name)
			}
		}
	}
	return names, len(p.Threads)
}

// TestProgress: what Python writes is what Go reads, with forks, many threads, and names of all kinds.
func TestProgress(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, script func(string) *exec.Cmd) { //nolint:thelper // it is a test
		cmd := script("testdata/rank.py")
		cmd.Stderr = os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil || cmd.Start() != nil {
			t.Fatal(err1, err2, "or not started")
		}
		r := rank{bufio.NewScanner(out), in}
		pid, heavy := r.at(t, "imported")
		if len(heavy) > 0 {
			t.Errorf("import cohort_dist loads %v", heavy)
		}
		if _, found := progresspage.Find("/proc", pid, pid); found {
			t.Error("there is a page before it is needed")
		}
		long := strings.Repeat("x", 55)
		for _, c := range []struct {
			stage   string
			steps   uint64
			names   []string
			threads int
		}{
			{"nested", 3, []string{"load", "decode"}, 1},
			{"left", 1001, nil, 0},
			{"deep", 1001, []string{"level 0", "level 1", "level 2", "level 3", "level 4", "level 5", "level 6", "level 7"}, 1},
			{"names", 1001, []string{long, "a", "?", ""}, 1},
			{"threads", 1001, nil, progresspage.Threads - 1}, // the main thread keeps its place
			{"joined", 1001, nil, 0},
			{"threads", 1001, nil, 3},
			{"joined", 1001, nil, 0},
			{"forked", 0, nil, -1},
			{"child", 1, []string{"child"}, 1},
			{"parent", 1001, []string{"parent"}, 1},
			{"last", 1<<64 - 1, nil, 0},
		} {
			r.goOn(t)
			pid, _ := r.at(t, c.stage)
			p, found := progresspage.Find("/proc", pid, pid)
			names, threads := sections(p)
			if found != (c.threads >= 0) || found && (p.Steps != c.steps || threads != c.threads) || !cmp.Equal(names, c.names) {
				t.Errorf("%s: found %v, %+v, want %+v", c.stage, found, p, c)
			}
			if found && (progresspage.Age(p.Stepped) > progresspage.Now() || p.Steps > 0 && p.Stepped == 0) {
				t.Errorf("%s: the step was done at %v, it is %v", c.stage, p.Stepped, progresspage.Now())
			}
		}
		r.goOn(t)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestWithoutMemoryFile: the functions do nothing where there can be no page.
func TestWithoutMemoryFile(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, script func(string) *exec.Cmd) { //nolint:thelper // it is a test
		if out, err := script("testdata/without.py").CombinedOutput(); err != nil || string(out) != "done\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestWire: the client of the store, which needs no PyTorch.
func TestWire(t *testing.T) {
	t.Parallel()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	each(t, func(t *testing.T, script func(string) *exec.Cmd) { //nolint:thelper // it is a test
		cmd := script("testdata/wire.py")
		cmd.Args = append(cmd.Args, strconv.Itoa(server.Port()))
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "done\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestDocumentation: the examples of the documentation are true.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, script func(string) *exec.Cmd) { //nolint:thelper // it is a test
		if out, err := script("testdata/doc.py").CombinedOutput(); err != nil || string(out) != "done\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
