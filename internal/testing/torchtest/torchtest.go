// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package torchtest runs scripts on real PyTorch for interop tests.
//
// One Python process per PyTorch version imports torch once and forks a child for every script, so a test costs
// milliseconds instead of seconds. Tests call [Each]; the environment decides what happens if no PyTorch is installed:
//
//	COHORT_INTEROP unset     interop tests are skipped
//	COHORT_INTEROP=auto      they run on the versions that are installed
//	COHORT_INTEROP=required  a version that is missing fails the test
//
// COHORT_PYTHON is the interpreter that has PyTorch 1.13 (default /usr/bin/python3). COHORT_TORCH26 is the folder of a
// system with PyTorch 2.6 (default /var/lib/torch-2.6, entered by chroot, which needs root), and COHORT_TORCH_NEWEST that
// of one with the newest PyTorch (default /var/lib/torch-newest). COHORT_TORCH_MORE names others as name=folder,
// separated by commas; an empty folder stands for an interpreter of that name on this system.
//
// [Each] runs a test on every installation, [EachWith] on those that have a feature. Features are detected by asking the
// installation (see installation.go); a missing one is not reported as a failure.
package torchtest

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

//go:embed zygote.py
var zygoteSource string

// Torch is one installed PyTorch, ready to run scripts.
type Torch struct {
	// Name is "1.13", "2.6", "newest" or one of COHORT_TORCH_MORE.
	Name string
	// Root is the folder that this Python sees as "/": "" for the host's own.
	Root string

	command []string
	start   sync.Once
	err     error
	ask     sync.Once
	about   About

	stdin    io.WriteCloser
	listener net.Listener
	gone     chan struct{} // closed when this Python has ended, and with it all knowledge about its children
	writeMu  sync.Mutex

	mu     sync.Mutex
	nextID int
	procs  map[int]*Proc
}

// V113, V26 and Newest are the versions that interop is tested with.
var (
	V113 = &Torch{Name: "1.13", command: []string{envOr("COHORT_PYTHON", "/usr/bin/python3")}}
	V26  = &Torch{
		Name: "2.6", Root: envOr("COHORT_TORCH26", "/var/lib/torch-2.6"),
		command: []string{"chroot", envOr("COHORT_TORCH26", "/var/lib/torch-2.6"), "/usr/bin/python3"},
	}
	Newest = inFolder("newest", envOr("COHORT_TORCH_NEWEST", "/var/lib/torch-newest"))
)

func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// Need skips or fails the test, as COHORT_INTEROP says, when this PyTorch cannot be had.
func (tr *Torch) Need(t testing.TB) {
	t.Helper()
	mode := os.Getenv("COHORT_INTEROP")
	if mode == "" {
		t.Skipf("interop: left out (COHORT_INTEROP is not set; 'make interop' runs it)")
	}
	tr.start.Do(func() { tr.err = tr.boot() })
	if tr.err != nil {
		if mode == "required" {
			t.Fatalf("interop: PyTorch %s is required: %v", tr.Name, tr.err)
		}
		t.Skipf("interop: PyTorch %s: %v", tr.Name, tr.err)
	}
	t.Logf("interop: uses torch-%s", tr.Name) // for tests that do not have it in their names: internal/devtools/compat counts them
}

// boot starts the Python that forks the children.
func (tr *Torch) boot() error {
	if tr.Root != "" {
		if _, err := os.Stat(filepath.Join(tr.Root, "usr/bin/python3")); err != nil {
			return fmt.Errorf("not installed: %w", err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // lives as long as the test binary
	if err != nil {
		return err
	}
	cmd := exec.Command(tr.command[0], append(tr.command[1:], "-u", "-c", zygoteSource)...) //nolint:gosec,noctx // a test tool
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "USE_LIBUV=0", "GLOO_SOCKET_IFNAME=lo", "TP_SOCKET_IFNAME=lo",
		"PYTHONDONTWRITEBYTECODE=1", "TORCH_CPP_LOG_LEVEL=ERROR")
	dieWithParent(cmd)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if tr.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	started, ended := make(chan error, 1), make(chan struct{})
	replied := make(chan struct{}) // all of its output was read: Wait may close the pipe
	go func() {
		runtime.LockOSThread() // the signal of dieWithParent comes when the starting *thread* ends: it must live as long
		err := cmd.Start()
		started <- err
		if err == nil {
			<-replied
			_ = cmd.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		_ = listener.Close()
		return err
	}
	replies := bufio.NewScanner(stdout)
	if !replies.Scan() {
		_ = listener.Close()
		_ = tr.stdin.Close()
		close(replied)
		<-ended // so that all its output has been read
		return fmt.Errorf("python could not import torch: %s", strings.TrimSpace(complaints.String()))
	}
	tr.listener, tr.procs, tr.gone = listener, map[int]*Proc{}, make(chan struct{})
	go func() {
		tr.readReplies(replies)
		close(tr.gone)
		close(replied)
	}()
	go tr.acceptOutputs()
	return nil
}

type reply struct {
	ID     int  `json:"id"`
	PID    int  `json:"pid"`
	Exit   int  `json:"exit"`
	Exited bool `json:"exited"`
}

func (tr *Torch) readReplies(replies *bufio.Scanner) {
	for replies.Scan() {
		var r reply
		if json.Unmarshal(replies.Bytes(), &r) != nil {
			continue
		}
		p := tr.proc(r.ID)
		if p == nil {
			continue
		}
		if r.Exited {
			p.exit = r.Exit
			go p.finish()
		} else {
			p.pid = r.PID
			close(p.forked)
		}
	}
}

func (tr *Torch) proc(id int) *Proc {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.procs[id]
}

func (tr *Torch) acceptOutputs() {
	for {
		conn, err := tr.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			r := bufio.NewReader(conn)
			hello, _ := r.ReadString('\n')
			var id int
			var which string
			if n, _ := fmt.Sscanf(hello, "%d %s", &id, &which); n != 2 {
				return
			}
			if p := tr.proc(id); p != nil {
				p.attach(which, conn, r)
			}
		}()
	}
}

// Optimizers is what PyTorch 2 imports when a script makes its first optimizer, for Script.Shared: it takes as long as to import torch.
var Optimizers = []string{"torch._dynamo"}

// Script is what a child runs.
type Script struct {
	// Name appears in tracebacks.
	Name string
	// Source is the program, run as __main__.
	Source string
	// Modules are importable by name in the child: the stubs of Go handlers, for instance.
	Modules map[string]string
	// Shared are modules that the parent imports before it forks, where it has them: those that many scripts would each import.
	Shared []string
	// Args become sys.argv[1:].
	Args []string
	// Env is added to the environment. GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME are "lo" unless set here; an empty
	// value leaves the variable empty.
	Env map[string]string
	// Dir is the working directory as the child sees it.
	Dir string
}

// Start runs a script in a forked child, which is killed at the end of the test.
func (tr *Torch) Start(t testing.TB, s Script) *Proc {
	t.Helper()
	if s.Name == "" {
		s.Name = t.Name() + ".py"
	}
	tr.mu.Lock()
	tr.nextID++
	p := &Proc{
		Torch: tr, name: s.Name, id: tr.nextID, forked: make(chan struct{}), done: make(chan struct{}),
		lines: make(chan string, 4096), ready: make(chan struct{}),
	}
	p.outputs.Add(2)
	tr.procs[p.id] = p
	tr.mu.Unlock()
	env := map[string]string{"PYTHONUNBUFFERED": "1"}
	maps.Copy(env, s.Env)
	modules := s.Modules
	if modules == nil {
		modules = map[string]string{}
	}
	args, shared := s.Args, s.Shared
	if args == nil {
		args = []string{}
	}
	if shared == nil {
		shared = []string{}
	}
	request, err := json.Marshal(map[string]any{
		"id": p.id, "port": tr.listener.Addr().(*net.TCPAddr).Port, "name": s.Name, "script": s.Source,
		"modules": modules, "shared": shared, "args": args, "env": env, "dir": s.Dir, "path": []string{},
	})
	if err != nil {
		t.Fatal(err)
	}
	tr.writeMu.Lock()
	_, err = tr.stdin.Write(append(request, '\n'))
	tr.writeMu.Unlock()
	if err != nil {
		t.Fatalf("interop: the Python of PyTorch %s is gone: %v", tr.Name, err)
	}
	select {
	case <-p.forked:
	case <-tr.gone:
		t.Fatalf("interop: the Python of PyTorch %s ended", tr.Name)
	}
	t.Cleanup(func() {
		p.Kill()
		select {
		case <-p.done:
		case <-tr.gone:
			t.Errorf("interop: the Python of PyTorch %s ended", tr.Name)
		}
		tr.mu.Lock()
		delete(tr.procs, p.id)
		tr.mu.Unlock()
		if t.Failed() {
			t.Logf("%s (torch %s) exit %d\n--- stdout\n%s--- stderr\n%s", p.name, tr.Name, p.exit, p.Stdout(), p.Stderr())
		}
	})
	return p
}

// Run runs a script and returns its standard output. It fails the test when the script fails or takes too long.
func (tr *Torch) Run(t testing.TB, s Script) string {
	t.Helper()
	p := tr.Start(t, s)
	p.MustExit(t, time.Minute)
	return p.Stdout()
}

// TempDir returns a fresh folder that both sides can use: its path for Go and its path as this Python sees it.
func (tr *Torch) TempDir(t testing.TB) (host, inside string) {
	t.Helper()
	if tr.Root == "" {
		dir := t.TempDir()
		return dir, dir
	}
	host, err := os.MkdirTemp(filepath.Join(tr.Root, "tmp"), "cohort") //nolint:usetesting // must lie below the other root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(host) })
	return host, strings.TrimPrefix(host, tr.Root)
}

// Proc is a running script.
type Proc struct {
	Torch *Torch

	name    string
	id      int
	pid     int
	exit    int
	forked  chan struct{}
	done    chan struct{}
	outputs sync.WaitGroup // its stdout and stderr connections
	lines   chan string
	ready   chan struct{} // stdin is connected

	mu             sync.Mutex
	stdin          net.Conn
	stdout, stderr bytes.Buffer
}

func (p *Proc) attach(which string, conn net.Conn, r *bufio.Reader) {
	defer p.outputs.Done()
	if which == "out" {
		p.mu.Lock()
		p.stdin = conn
		p.mu.Unlock()
		close(p.ready)
	}
	for {
		line, err := r.ReadString('\n')
		p.mu.Lock()
		if which == "out" {
			p.stdout.WriteString(line)
		} else {
			p.stderr.WriteString(line)
		}
		p.mu.Unlock()
		if which == "out" && line != "" {
			select {
			case p.lines <- strings.TrimSuffix(line, "\n"):
			default: // the lines of this script are not read; Stdout has them all
			}
		}
		if err != nil {
			if which == "out" {
				close(p.lines)
			}
			return
		}
	}
}

// finish waits for the rest of the output, but not for ever: a child that was killed early never connected it, and one
// may have left a process behind that keeps it open.
func (p *Proc) finish() {
	defer close(p.done)
	drained := make(chan struct{})
	go func() {
		p.outputs.Wait()
		close(drained)
	}()
	select {
	case <-drained:
		return
	case <-time.After(2 * time.Second):
	}
	select {
	case <-p.ready:
		select { // it is connected, so it was not too early: the machine is slow
		case <-drained:
		case <-time.After(20 * time.Second):
		}
	default:
	}
}

// PID is the process id of the child.
func (p *Proc) PID() int { return p.pid }

// lineTime is how long a script may take for its next line: plans of many steps print one at their end.
const lineTime = 2 * time.Minute

// Line returns the next line of standard output, failing the test after lineTime or when the script ends first.
func (p *Proc) Line(t testing.TB) string {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			t.Fatalf("%s (torch %s) ended while a line of output was expected\n%s", p.name, p.Torch.Name, p.Stderr())
		}
		return line
	case <-time.After(lineTime):
		t.Fatalf("%s (torch %s) printed nothing for %v\n%s", p.name, p.Torch.Name, lineTime, p.Stderr())
	}
	return ""
}

// Expect reads lines until one equals want.
func (p *Proc) Expect(t testing.TB, want string) {
	t.Helper()
	for p.Line(t) != want {
	}
}

// Send writes a line to the script's standard input.
func (p *Proc) Send(t testing.TB, line string) {
	t.Helper()
	select {
	case <-p.ready:
	case <-p.done:
		t.Fatalf("%s (torch %s) ended before it read a line\n%s", p.name, p.Torch.Name, p.Stderr())
	}
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		t.Fatalf("%s: stdin: %v", p.name, err)
	}
}

// Stdout returns what was printed up to now.
func (p *Proc) Stdout() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdout.String()
}

// Stderr returns what was printed to standard error up to now.
func (p *Proc) Stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// Done is closed when the script has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Wait returns the exit code: that of the process, or minus the signal that ended it.
func (p *Proc) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s is still running: %w", p.name, context.Cause(ctx))
	}
}

// MustExit fails the test unless the script ends with exit code 0 in time.
func (p *Proc) MustExit(t testing.TB, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, errors.New("it took too long"))
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("%v (torch %s)\n--- stdout\n%s--- stderr\n%s", err, p.Torch.Name, p.Stdout(), p.Stderr())
	}
	if code != 0 {
		t.Fatalf("%s (torch %s) exit %d\n--- stdout\n%s--- stderr\n%s", p.name, p.Torch.Name, code, p.Stdout(), p.Stderr())
	}
}

// Kill ends the script with SIGKILL. It may be called at any time.
func (p *Proc) Kill() { p.Signal(syscall.SIGKILL) }

// Signal sends a signal to the script. SIGSTOP has stopped it when Signal returns.
func (p *Proc) Signal(sig syscall.Signal) {
	select {
	case <-p.done:
	default:
		signal(p.pid, sig)
	}
}
