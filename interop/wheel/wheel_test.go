// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package wheel installs the Python wheel beside every PyTorch, in a virtual environment, and runs jobs with it.
package wheel

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == memberArgument {
		runMember(os.Args[2:])
		return
	}
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(code)
}

// built is the file that made has built.
var built string

// made is the wheel of this checkout.
var made = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cohort-wheel-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "run", "./internal/devtools/release", "-wheel", dir)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	built = filepath.Join(dir, strings.TrimSpace(string(out)))
	return built, nil
})

// environment is a virtual environment with a PyTorch, in a folder that has the same path inside and outside of its root.
type environment struct {
	dir  string
	root []string // how a command is started there
	pip  string   // a wheel of pip that runs on its Python
}

func newEnvironment(t *testing.T, torch *torchtest.Torch) environment {
	t.Helper()
	e := environment{dir: t.TempDir()}
	command := torch.Command()
	python := command[len(command)-1]
	if torch.Root != "" {
		below, err := os.MkdirTemp(filepath.Join(torch.Root, "tmp"), "cohort-wheel-") //nolint:usetesting // within that root
		if err != nil {
			t.Fatal(err)
		}
		e.root, e.dir = command[:len(command)-1], filepath.Join("/tmp", filepath.Base(below))
		if err = os.Symlink(below, e.dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = os.Remove(e.dir)
			_ = os.RemoveAll(below)
		})
	}
	e.run(t, python, "-m", "venv", "--system-site-packages", "--without-pip", filepath.Join(e.dir, "venv"))
	for _, name := range []string{"plain.py", "late.py", "member.py"} {
		e.take(t, filepath.Join("testdata", name))
	}
	for _, wheel := range pips() {
		if e.pip = filepath.Join(e.take(t, wheel), "pip"); e.command(e.python(), e.pip, "--version").Run() == nil {
			return e
		}
	}
	torch.NotApplicable(t, "has no pip, and none that is here runs on its Python")
	return e
}

// pips are the wheels of pip that Pythons here bring for their environments, the newest first.
func pips() (found []string) {
	home, _ := os.UserHomeDir()
	for _, where := range []string{
		"/usr/share/python-wheels", "/usr/lib/python3*/ensurepip/_bundled", "/usr/local/lib/python3*/ensurepip/_bundled",
		filepath.Join(home, ".pyenv/versions/*/lib/python3*/ensurepip/_bundled"),
	} {
		more, _ := filepath.Glob(filepath.Join(where, "pip-2?.*.whl"))
		found = append(found, more...)
	}
	slices.SortFunc(found, func(a, b string) int { return strings.Compare(filepath.Base(b), filepath.Base(a)) })
	return slices.CompactFunc(found, func(a, b string) bool { return filepath.Base(a) == filepath.Base(b) })
}

// take copies a file into the folder.
func (e environment) take(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	into := filepath.Join(e.dir, filepath.Base(name))
	if err = os.WriteFile(into, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return into
}

func (e environment) bin(name string) string { return filepath.Join(e.dir, "venv", "bin", name) }

func (e environment) python() string { return e.bin("python3") }

// inside is a command line in the root of the environment.
func (e environment) inside(args ...string) []string { return append(slices.Clone(e.root), args...) }

func (e environment) command(args ...string) *exec.Cmd {
	args = e.inside(args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME=lo", "PYTHONPATH=", "PET_LOCAL_ADDR=127.0.0.1", "PIP_DISABLE_PIP_VERSION_CHECK=1",
		"XDG_STATE_HOME="+e.dir, "TMPDIR="+e.dir, "TORCH_CPP_LOG_LEVEL=ERROR")
	return cmd
}

// run runs a command that succeeds, and returns what it prints.
func (e environment) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := e.command(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// install has pip install the wheel, and returns the program.
func (e environment) install(t *testing.T) string {
	t.Helper()
	wheel, err := made()
	if err != nil {
		t.Fatal(err)
	}
	e.run(t, e.python(), e.pip, "install", "--no-index", e.take(t, wheel))
	return e.bin("cohort")
}

// readOnly uses the package as a user who may write nothing.
func (e environment) readOnly(t *testing.T) {
	t.Helper()
	for _, dir := range []string{e.dir, filepath.Dir(e.dir)} {
		if dir != "/tmp" && os.Chmod(dir, 0o755) != nil {
			t.Fatal(dir)
		}
	}
	root := "/"
	if len(e.root) > 0 {
		root = e.root[1]
	}
	const script = `import os, sys, cohort_dist, cohort_dist.why
assert not os.access(os.path.dirname(cohort_dist.__file__), os.W_OK)
with cohort_dist.why.section("load"): cohort_dist.why.step()
os.execv(sys.executable, [sys.executable, "-I", "-m", "cohort_dist", "version"])`
	out, err := exec.Command("chroot", "--userspec=65534:65534", root, e.python(), "-I", "-c", script).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "cohort v") {
		t.Errorf("as a user without rights: %v\n%s", err, out)
	}
}

// launch starts a job with the program of the environment, whose launcher is outside of its root.
func (e environment) launch(t *testing.T, args ...string) *job {
	t.Helper()
	outside := e
	outside.root = nil
	j := &job{cmd: outside.command(append([]string{e.bin("cohort"), "run", "--evidence", "-"}, args...)...), done: make(chan error, 1)}
	j.cmd.Stdout, j.cmd.Stderr = j, j
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { j.done <- j.cmd.Wait() }()
	t.Cleanup(func() { _ = j.cmd.Process.Kill() })
	return j
}

// longest is how long each part of a job may take: several import torch at the same time.
const longest = 4 * time.Minute

// job is a running job.
type job struct {
	cmd  *exec.Cmd
	done chan error
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *job) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *job) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// find waits until the output has n matches.
func (j *job) find(t *testing.T, pattern string, n int) [][]string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for limit := time.Now().Add(longest); ; time.Sleep(20 * time.Millisecond) {
		if found := re.FindAllStringSubmatch(j.String(), -1); len(found) >= n {
			return found
		}
		if time.Now().After(limit) {
			t.Fatalf("%q is not there %d times:\n%s", pattern, n, j)
		}
	}
}

func (j *job) ends(t *testing.T) {
	t.Helper()
	select {
	case err := <-j.done:
		if err != nil {
			t.Errorf("the job: %v\n%s", err, j)
		}
	case <-time.After(longest):
		t.Fatalf("the job does not end:\n%s", j)
	}
}

// TestWheelBesidePyTorch: in an environment with each PyTorch, pip installs the wheel. A script runs that does not know it. A group of
// members in Python and Go hangs, and "cohort why" names the section; it loses a member, whose place a spare takes; the wheel is removed
// while it runs, and it goes on to its end.
func TestWheelBesidePyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Parallel()
		e := newEnvironment(t, torch)
		before, _ := e.command(e.python(), e.pip, "check").CombinedOutput() // the system's packages may disagree
		program := e.install(t)
		if after, _ := e.command(e.python(), e.pip, "check").CombinedOutput(); !bytes.Equal(before, after) {
			t.Errorf("pip check says\n%sand without the wheel\n%s", after, before)
		}
		e.readOnly(t)
		standStill(t, torch, e, program)
		changingGroup(t, torch, e)
	})
}

func changingGroup(t *testing.T, torch *torchtest.Torch, e environment) {
	t.Helper()
	const steps = "150"
	script := filepath.Join(e.dir, "start.sh")
	python := strings.Join(e.inside(e.python(), "-u", filepath.Join(e.dir, "member.py"), steps), " ")
	workers, members := "3", 2
	text := "exec " + python + "\n"
	if torch.About(t).Since(2, 3) { // that of 1.13 connects otherwise
		workers, members = "4", 3
		text = "[ $LOCAL_RANK = 0 ] && exec " + self(t) + " " + memberArgument + " " + steps + "\n" + text
	}
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	j := e.launch(t, "--nproc-per-node", workers, "--members", strconv.Itoa(members), "sh", script)
	j.find(t, `member \d+: step 20\n`, members)
	joined := j.find(t, `member (\d+) \(process (\d+)\): rank (\d) of \d at step \d+`, members)
	numbers := map[string]string{}
	for _, m := range joined {
		numbers[m[1]] = m[2]
	}
	var victims []string
	for number, pid := range numbers {
		if path, err := os.Readlink("/proc/" + pid + "/exe"); err == nil && strings.Contains(path, "python") {
			victims = append(victims, number)
		}
	}
	if len(victims) == 0 {
		t.Fatalf("no members in Python\n%s", j)
	}
	slices.Sort(victims)
	signalTo(t, numbers[victims[0]], syscall.SIGKILL)
	j.find(t, `member \d+ \(process \d+\): rank \d of \d at step [1-9]`, members)
	e.run(t, e.python(), e.pip, "uninstall", "-y", "cohort-dist")
	if _, err := os.Stat(e.bin("cohort")); err == nil {
		t.Error("the program is still there")
	}
	j.find(t, `member \d+ done\n`, members)
	j.ends(t)
}

// standStill runs a job in which one rank loads its data and the other one, which knows nothing of cohort, waits for it.
func standStill(t *testing.T, torch *torchtest.Torch, e environment, program string) {
	t.Helper()
	id := "wheel-" + torch.Name + "-" + strconv.Itoa(os.Getpid())
	hang, script := filepath.Join(e.dir, "hang"), filepath.Join(e.dir, "two.sh")
	plain := strings.Join(e.inside(e.python(), filepath.Join(e.dir, "plain.py")), " ")
	late := strings.Join(e.inside(e.python(), filepath.Join(e.dir, "late.py"), hang), " ")
	if err := syscall.Mkfifo(hang, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("[ $RANK = 0 ] && exec "+plain+"\nexec "+late+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := e.launch(t, "--rdzv-id", id, "--nproc-per-node", "2", "sh", script)
	want := regexp.MustCompile(`Rank 1 has not called init_process_group; it is in <module> \(late\.py:\d+\).*, ` +
		`in section "load" for .*, step 7`)
	var sentence []byte
	for limit := time.Now().Add(longest); !want.Match(sentence); {
		if time.Now().After(limit) {
			t.Fatalf("cohort why says\n%s\nnot %v", sentence, want)
		}
		sentence, _ = exec.Command(program, "why", id).CombinedOutput()
	}
	t.Logf("%s", sentence)
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.find(t, `sum 2 of 2, without \[\]`, 1) // nothing of the wheel is loaded where it is not imported
	j.ends(t)
}

func self(t *testing.T) string {
	t.Helper()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func signalTo(t *testing.T, pid string, s syscall.Signal) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = syscall.Kill(n, s)
	}
	if err != nil {
		t.Fatal(err)
	}
}
