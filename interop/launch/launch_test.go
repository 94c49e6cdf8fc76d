// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch runs real PyTorch scripts under "cohort run" and under torchrun.
package launch

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/launch"
)

//go:embed testdata
var scripts embed.FS

// binary builds the command once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cohort-launch-")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "cohort")
	out, err := exec.Command("go", "build", "-ldflags=-s", "-o", name, "../../cmd/cohort").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return name, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if name, err := binary(); err == nil && os.Getenv("COHORT_INTEROP") != "" {
		_ = os.RemoveAll(filepath.Dir(name))
	}
	os.Exit(code)
}

// place is a folder with the scripts that has the same path for the launcher and for the Python in its own root.
func place(t *testing.T, torch *torchtest.Torch) string {
	t.Helper()
	dir := t.TempDir()
	if torch.Root != "" {
		// A folder below the other root, and a link to it with the path that it has inside.
		below, err := os.MkdirTemp(filepath.Join(torch.Root, "tmp"), "cohort-job-") //nolint:usetesting // t.TempDir is outside of that root
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join("/tmp", filepath.Base(below))
		if err := os.Symlink(below, dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = os.RemoveAll(below)
			_ = os.Remove(dir)
		})
	}
	if err := os.CopyFS(filepath.Join(dir, "cohort_dist"), os.DirFS("../../python/cohort_dist")); err != nil {
		t.Fatal(err)
	}
	files, err := scripts.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := scripts.ReadFile("testdata/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// job is a run of a launcher.
type job struct {
	*exec.Cmd
	t        *testing.T
	dir      string
	out, err *lines
	done     chan error
}

// lines collects output and lets tests wait for it.
type lines struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	close(l.changed)
	l.changed = make(chan struct{})
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wait waits until the output has n matches.
func (j *job) wait(l *lines, pattern string, n int) {
	j.t.Helper()
	re := regexp.MustCompile(pattern)
	limit := time.After(3 * time.Minute)
	for {
		l.mu.Lock()
		changed := l.changed
		found := len(re.FindAllString(l.text.String(), -1))
		l.mu.Unlock()
		if found >= n {
			return
		}
		select {
		case <-changed:
		case err := <-j.done:
			j.t.Fatalf("the job ended (%v) before %d lines matched %s:\n%s%s", err, n, pattern, j.out, j.err)
		case <-limit:
			j.t.Fatalf("no %d lines matched %s:\n%s%s", n, pattern, j.out, j.err)
		}
	}
}

// cohortRun starts a job; args are options and the script with its arguments.
func cohortRun(t *testing.T, torch *torchtest.Torch, dir string, options []string, program ...string) *job {
	t.Helper()
	return cohortWith(t, torch, dir, nil, options, program...)
}

// cohortWith starts a job with variables in its environment.
func cohortWith(t *testing.T, torch *torchtest.Torch, dir string, env, options []string, program ...string) *job {
	t.Helper()
	name, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"run", "--report", filepath.Join(dir, "report.json"), "--evidence", filepath.Join(dir, "evidence")}, options...)
	return begin(t, dir, exec.Command(name, append(append(args, torch.Command()...), program...)...), env...)
}

func begin(t *testing.T, dir string, cmd *exec.Cmd, env ...string) *job {
	t.Helper()
	j := &job{Cmd: cmd, t: t, dir: dir, done: make(chan error, 1)}
	j.out, j.err = &lines{changed: make(chan struct{})}, &lines{changed: make(chan struct{})}
	j.Stdout, j.Stderr = j.out, j.err
	j.Env = append(environment(dir), env...)
	if err := j.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Process.Kill() })
	go func() { j.done <- j.Wait() }()
	return j
}

// environment is that of a launcher.
func environment(dir string) []string {
	return append(os.Environ(), "TMPDIR="+dir, "GLOO_SOCKET_IFNAME=lo", "PYTHONDONTWRITEBYTECODE=1", "TORCH_CPP_LOG_LEVEL=ERROR",
		"PET_LOCAL_ADDR=127.0.0.1") // this host's name need not resolve
}

// end waits for the end and returns the exit code.
func (j *job) end() int {
	j.t.Helper()
	code, ended := j.endWithin(4 * time.Minute)
	if !ended {
		j.t.Fatalf("the job does not end:\n%s%s", j.out, j.err)
	}
	return code
}

// endWithin waits so long for the end.
func (j *job) endWithin(limit time.Duration) (code int, ended bool) {
	j.t.Helper()
	select {
	case err := <-j.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			j.t.Fatal(err)
		}
		return j.ProcessState.ExitCode(), true
	case <-time.After(limit):
		return 0, false
	}
}

func (j *job) report() launch.Report {
	j.t.Helper()
	var r launch.Report
	b, err := os.ReadFile(filepath.Join(j.dir, "report.json"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		j.t.Fatalf("%v\n%s%s", err, j.out, j.err)
	}
	return r
}

// result is what reduce.py writes.
type result struct {
	Sum  float64
	Env  map[string]string
	Argv []string
}

func results(t *testing.T, dir string) []result {
	t.Helper()
	var all []result
	for rank := range 2 {
		var r result
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank%d.json", rank)))
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// torchrun is how PyTorch's launcher is started on builds without libuv: with its own store's default changed.
const torchrun = `
import sys, torch
from torch.distributed.elastic.multiprocessing.api import Std
if hasattr(Std, "from_str") and Std.from_str("0") is None: Std.from_str = classmethod(lambda cls, v: Std(int(v)))
from torch.distributed.run import main
main()
`

// TestSameAsTorchrun runs the same script under both launchers: the same results, and the same environment but for what
// docs/launcher.md lists.
func TestSameAsTorchrun(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
		for _, d := range []string{ours, theirs} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2", "--rdzv-id", "job"}, "-u", dir+"/reduce.py", ours)
		if code := j.end(); code != 0 {
			t.Fatalf("cohort run: exit code %d\n%s%s", code, j.out, j.err)
		}
		cmd, path := withTorchrun(t, torch, dir, dir+"/reduce.py", theirs)
		k := begin(t, dir, cmd, path)
		if code := k.end(); code != 0 {
			t.Fatalf("torchrun: exit code %d\n%s%s", code, k.out, k.err)
		}
		a, b := results(t, ours), results(t, theirs)
		for rank := range 2 {
			if a[rank].Sum != 3 || b[rank].Sum != 3 {
				t.Errorf("rank %d: sums %v and %v", rank, a[rank].Sum, b[rank].Sum)
			}
			compareEnvironment(t, rank, a[rank].Env, b[rank].Env)
		}
	})
}

// differing are the variables whose values differ from run to run, and added those that torchrun does not set: the list
// of docs/launcher.md.
var (
	differing = []string{
		"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID",
		"TORCHELASTIC_USE_AGENT_STORE", "PYTHONPATH", "LC_CTYPE",
	}
	added = []string{
		"COHORT_RUN", "PYTHONFAULTHANDLER", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE",
		"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "PYTHONPATH",
		"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_SIGNALS_TO_HANDLE",
	}
)

func compareEnvironment(t *testing.T, rank int, ours, theirs map[string]string) {
	t.Helper()
	for name, value := range theirs {
		got, found := ours[name]
		switch {
		case !found:
			t.Errorf("rank %d: %s is missing, torchrun sets %q", rank, name, value)
		case got != value && !slices.Contains(differing, name):
			t.Errorf("rank %d: %s is %q, torchrun sets %q", rank, name, got, value)
		}
	}
	for name := range ours {
		if _, found := theirs[name]; !found && !slices.Contains(added, name) {
			t.Errorf("rank %d: %s is set, which torchrun does not", rank, name)
		}
	}
}

// TestCause: a rank that raises and tidies up for two seconds while its peer dies of it is named as the cause, with its
// exception. torchrun names the peer and prints the exception nowhere.
func TestCause(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, slow := range []string{"", "2"} {
			dir := place(t, torch)
			j := cohortWith(t, torch, dir, []string{"SLOW=" + slow}, []string{"--nproc-per-node", "2"}, "-u", dir+"/victim.py")
			if code := j.end(); code != 1 {
				t.Errorf("exit code %d", code)
			}
			r := j.report()
			if !strings.HasPrefix(r.Sentence, "rank 1 raised ValueError: the real cause") { // where it is slow to end, it says that, too
				t.Errorf("SLOW=%s: %s\n%s", slow, r.Sentence, j.err)
			}
			if !strings.Contains(j.err.String(), `raise ValueError("the real cause")`) {
				t.Errorf("SLOW=%s: no traceback in\n%s", slow, j.err)
			}
		}
	})
}

// TestMixedJob: Go ranks and PyTorch ranks are two roles of one job and add up together.
func TestMixedJob(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		words, err := json.Marshal(append(torch.Command(), "-u", dir+"/mixed.py"))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "job.yaml")
		text := fmt.Sprintf(
			"roles:\n  - {name: go, workers: 2, program: [%s, demo-worker, --scene, train]}\n  - {name: trainer, workers: 1, "+
				"program: %s}\n", program(t), words)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		j := begin(t, dir, exec.Command(program(t), "run", "--report", filepath.Join(dir, "report.json"), "--evidence", "-",
			"--log-dir", dir, "-f", file))
		code := j.end()
		for _, want := range []string{"torch step 5: the sum is 6", "torch trainer 0 of 1 has seen all"} {
			if code != 0 || !strings.Contains(j.out.String(), want) || strings.Count(j.out.String(), "step 5: the sum is 6") != 3 {
				t.Fatalf("exit code %d, no %q in\n%s%s", code, want, j.out, j.err)
			}
		}
	})
}

// TestFailures: the sentence of a report says what happened, not what followed from it.
func TestFailures(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for kind, want := range map[string]string{
			"leaves":    `^rank 1 ended with exit code 0 while others still needed it; then rank 0 lost its connection to another rank: `,
			"segfault":  `^rank 1 crashed: segmentation fault \(SIGSEGV\) in trouble \(.*fail\.py:\d+\)$`,
			"disk":      `^rank 1 raised (RuntimeError|OSError): .*(inline_container\.cc|No space left on device)`,
			"disk-text": `^rank 1 raised OSError: \[Errno 28\] No space left on device$`,
			"killed":    `^rank 1 was killed by SIGKILL`,
			"shape": `^rank 0 crashed: aborted \(SIGABRT\) while it was in <module> \(.*fail\.py:\d+\); the ranks disagree ` +
				`about the size of the tensor: a peer sent a part of \d+ bytes where it expected \d+$`,
			"loader": `^rank 1 raised RuntimeError: DataLoader worker \(pid`,
			"port":   `^rank 1 raised .*(EADDRINUSE|[Aa]ddress already in use)`,
			"resolve": `^rank 1 raised .*trying to connect to \(no-such-host\.invalid, 29500\).*; the name no-such-host\.invalid ` +
				`does not resolve on this host$`,
		} {
			if (kind == "killed" || kind == "disk-text") && torch != torchtest.V26 {
				continue // PyTorch has no part in these
			}
			t.Run(kind, func(t *testing.T) {
				if kind == "resolve" {
					needNames(t)
				}
				dir := place(t, torch)
				j := cohortRun(t, torch, dir, []string{"--nproc-per-node", "2"}, "-u", dir+"/fail.py", kind)
				j.end()
				if s := j.report().Sentence; !regexp.MustCompile(want).MatchString(s) {
					t.Errorf("%s\nwant %s\n%s", s, want, j.err)
				}
				if strings.HasPrefix(kind, "disk") && !strings.Contains(j.err.String(), "df -h") {
					t.Errorf("no advice in\n%s", j.err)
				}
			})
		}
	})
}

// TestRestartWithLateRank: a rank that comes late to the second attempt, and another to the third, finds its peer, not the addresses of
// dead processes. torchrun's job hangs or dies on them.
func TestRestartWithLateRank(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		env := []string{"FAIL_RANK=1", "FAILURES=2", "LATE=-01", "STEPS=6"}
		j := cohortWith(t, torch, dir, env, []string{"--nproc-per-node", "2", "--max-restarts", "2"}, "-u", dir+"/loop.py")
		if code := j.end(); code != 0 || strings.Count(j.out.String(), "joined") != 6 || strings.Count(j.out.String(), "done 5") != 2 {
			t.Errorf("exit code %d\n%s%s", code, j.out, j.err)
		}
	})
}

// TestRecorder: PyTorch's flight recorder for NCCL is on in all versions that have one, under the names that they know, unless the user
// has said something else.
func TestRecorder(t *testing.T) {
	t.Parallel()
	const names = `("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")`
	const script = `import os, torch.distributed; print(*("run" if "cohort_run" in v else v for v in (os.environ.get(n, "-") for n ` +
		`in ` + names + `)))`
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		older := torch.Name == "2.6"
		for _, c := range []struct{ env, want, wantOlder string }{
			{"", "2000 - -", "2000 2000 run"},
			{"TORCH_FR_BUFFER_SIZE=0", "0 - -", "0 0 run"},
			{"TORCH_NCCL_TRACE_BUFFER_SIZE=7", "- 7 -", "- 7 run"},
		} {
			dir := place(t, torch)
			var env []string
			if c.env != "" {
				env = []string{c.env}
			}
			j := cohortWith(t, torch, dir, env, nil, "-c", script)
			j.end()
			want := c.want
			if older {
				want = c.wantOlder
			}
			if got := strings.TrimSpace(j.out.String()); got != want {
				t.Errorf("with %q: %s, want %s\n%s", c.env, got, want, j.err)
			}
		}
	})
}

// TestShadowedSitecustomize: the module that the shim hides runs, and the switch turns the shim off.
func TestShadowedSitecustomize(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte("print('shadowed', __file__)\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		env := []string{"PYTHONPATH=" + dir}
		j := cohortWith(t, torch, dir, env, nil, "-c",
			"import sys; print('shim', any('cohort_run' in p for p in sys.path), sys.modules['sitecustomize'].__file__)")
		j.end()
		if out := j.out.String(); !strings.Contains(out, "shadowed "+dir) || !strings.Contains(out, "shim True "+dir) {
			t.Errorf("it prints\n%s%s", out, j.err)
		}
		k := cohortWith(t, torch, dir, env, []string{"--no-shim"}, "-c",
			"import os, sys; print('shim', any('cohort_run' in p for p in sys.path), os.environ['TORCHELASTIC_USE_AGENT_STORE'])")
		k.end()
		if out := k.out.String(); !strings.Contains(out, "shim False False") {
			t.Errorf("without the shim it prints\n%s%s", out, k.err)
		}
	})
}
