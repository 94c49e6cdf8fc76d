// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

// TestPolled: what a thread polls is told if it is one file.
func TestPolled(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	cmd := exec.Command("python3", "-c",
		"import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=600).recv(1)",
		strings.TrimPrefix(ln.Addr().String(), "127.0.0.1:"))
	if err := cmd.Start(); err != nil {
		t.Skipf("this machine has no Python: %v", err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	got := ""
	for limit := time.Now().Add(30 * time.Second); got != ln.Addr().String() && time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		got = object(portowner.ReadSockets([]int{cmd.Process.Pid}), cmd.Process.Pid, cmd.Process.Pid, "")
	}
	if got != ln.Addr().String() {
		t.Errorf("it waits for %q, want %q", got, ln.Addr())
	}
}

// TestSelectedObject: a thread in select waits for the files in its sets, not for the one that has their number. Of several none is told.
func TestSelectedObject(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	const script = `import os, select, socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
null = os.open("/dev/null", os.O_RDONLY)
os.dup2(null, c.fileno() + 1)  # the number of files in the sets
pipes = [os.pipe()[0]] if sys.argv[2] == "2" else []
print("ready", flush=True)
select.select([c] + pipes, [], [])`
	for files, want := range map[string]string{"1": ln.Addr().String(), "2": ""} {
		cmd := exec.Command("python3", "-c", script, strings.TrimPrefix(ln.Addr().String(), "127.0.0.1:"), files)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Skipf("this machine has no Python: %v", err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		pid, kernel := cmd.Process.Pid, ""
		for limit := time.Now().Add(30 * time.Second); !strings.HasPrefix(kernel, "poll_schedule_timeout") &&
			time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
			b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "wchan"))
			kernel = string(b)
		}
		if !strings.HasPrefix(kernel, "poll_schedule_timeout") {
			t.Skipf("this kernel says %q of a process in select", kernel)
		}
		if got := object(portowner.ReadSockets([]int{pid}), pid, pid, kernel); got != want {
			t.Errorf("of %s files: it waits for %q in %s, want %q", files, got, kernel, want)
		}
	}
}

// TestSelected: the only file in the sets of a select is found in the memory of the process, whatever the kernel reports of its threads.
func TestSelected(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	memory := make([]byte, 64)
	memory[16] = 1 << 5                 // a set with file 5
	memory[24], memory[25] = 1<<5, 1<<1 // with files 5 and 9
	memory[33] = 1 << 1                 // with file 9
	if err := os.WriteFile(filepath.Join(dir, "mem"), memory, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files uint64
		sets  string
		want  int // -1: none
	}{
		"to be read":                      {10, "0x10 0x0 0x0", 5},
		"to be written":                   {10, "0x0 0x20 0x0", 9},
		"exceptional":                     {10, "0x0 0x0 0x10", 5},
		"in two sets":                     {10, "0x10 0x0 0x10", 5},
		"two files":                       {10, "0x18 0x0 0x0", -1},
		"two files, the second is closed": {9, "0x18 0x0 0x0", 5},
		"two files in two sets":           {10, "0x10 0x20 0x0", -1},
		"none":                            {10, "0x0 0x0 0x0", -1},
		"no files":                        {0, "0x10 0x0 0x0", -1},
		"too many":                        {1025, "0x10 0x0 0x0", -1},
		"no such memory":                  {10, "0x4000 0x0 0x0", -1},
		"no number":                       {10, "x 0x0 0x0", -1},
		"too few arguments":               {10, "0x10", -1},
	} {
		got := -1
		if fd, err := selected(dir, c.files, append([]string{"23", fmt.Sprintf("%#x", c.files)}, strings.Fields(c.sets)...)); err == nil {
			got = int(fd)
		}
		if got != c.want {
			t.Errorf("%s: file %d, want %d", name, got, c.want)
		}
	}
	if _, err := selected(t.TempDir(), 10, strings.Fields("23 0xa 0x10 0x0 0x0")); err == nil {
		t.Error("a process without memory")
	}
}

// TestObject: the kernel reports from what a thread reads: the other end of a connection, or a file.
func TestObject(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err = syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that the reader gets past its opening
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	to, err := net.ResolveTCPAddr("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialTCP("tcp", nil, to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	socket, err := conn.File() // in blocking mode, so that its reader sleeps in the read itself
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	_ = socket.Fd()
	for want, in := range map[string]*os.File{fifo: pipe, ln.Addr().String(): socket} {
		cmd := exec.Command("cat")
		cmd.Stdin = in
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		got := ""
		for limit := time.Now().Add(30 * time.Second); got != want && time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
			got = object(portowner.ReadSockets([]int{cmd.Process.Pid}), cmd.Process.Pid, cmd.Process.Pid, "")
		}
		if got != want {
			t.Errorf("it reads from %q, want %q", got, want)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if got := object(nil, 1<<30, 1<<30, ""); got != "" {
		t.Errorf("a process that is not there reads from %q", got)
	}
}

// startPython runs a program that prints when it is ready, and ends it and its children with the test.
func startPython(t *testing.T, text string) (pid int) {
	t.Helper()
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip("Python is not installed")
	}
	script := filepath.Join(t.TempDir(), "train.py")
	if err = os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, script)
	in, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		children := childrenOf(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, child := range children { // what a fork server has forked ends with it
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
	})
	if _, err := in.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestHelpersAreNoWorkers: the processes that multiprocessing starts for itself run no code of the program.
func TestHelpersAreNoWorkers(t *testing.T) {
	t.Parallel()
	pid := startPython(t,
		"import multiprocessing, time\n\ndef work():\n    time.sleep(600)\n\nif __name__ == '__main__':\n    c = "+
			"multiprocessing.get_context('forkserver')\n    p = c.Process(target=work)\n    p.start()\n    print('ready', "+
			"flush=True)\n    p.join()\n")
	var last string
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		seen := Examine(t.Context(), Job{World: 1, Local: true, Ranks: []Rank{{PID: pid}}}, 50*time.Millisecond)
		children := seen.Ranks[0].Children
		if last = ""; len(children) == 1 && len(children[0].Frames) > 0 {
			if last = children[0].Frames[0].Func; strings.HasSuffix(last, "work") {
				return
			}
		}
	}
	t.Errorf("the worker was not found, but %q", last)
}

// TestIdlePool: a pool is idle only if all its processes wait for a task.
func TestIdlePool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"killed":            {"p = multiprocessing.Pool(2)\nr = p.apply_async(die)\n", true},
		"code of libraries": {"p = multiprocessing.Pool(1)\np.apply(abs, (1,))\nr = p.apply_async(time.sleep, (600,))\n", false},
		"threads":           {"p = multiprocessing.pool.ThreadPool(2)\nr = p.apply_async(time.sleep, (600,))\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pid := startPython(t,
				"import multiprocessing, multiprocessing.pool, os, signal, time\n\ndef die():\n    os.kill(os.getpid(), "+
					"signal.SIGKILL)\n\n"+c.text+"print('ready', flush=True)\nr.get()\n")
			var seen verdict.Rank
			for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
				seen = Examine(t.Context(), Job{World: 1, Local: true, Ranks: []Rank{{PID: pid}}}, 50*time.Millisecond).Ranks[0]
				waits := seen.Main != nil && !seen.Moved &&
					slices.ContainsFunc(seen.Main.Frames, func(f stacks.Frame) bool { return strings.HasSuffix(f.Func, "Result.get") })
				if waits && seen.PoolIdle == c.want {
					return
				}
			}
			t.Errorf("idle %v, want %v: %v", seen.PoolIdle, c.want, seen.Main)
		})
	}
}

// TestPipe: of two processes, the one is found that could write into the pipe that a third one reads.
func TestPipe(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	begin := func(stdin, stdout *os.File, name string, args ...string) int {
		cmd := exec.Command(name, args...)
		if stdin != nil {
			cmd.Stdin = stdin
		}
		if stdout != nil {
			cmd.Stdout = stdout
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd.Process.Pid
	}
	reader := begin(read, nil, "cat")
	writer, other := begin(nil, write, "sleep", "1000"), begin(read, nil, "sleep", "1000")
	_, _ = read.Close(), write.Close()
	pipe := ""
	for limit := time.Now().Add(time.Minute); pipe == "" && time.Now().Before(limit); time.Sleep(time.Millisecond) { // until it reads
		pipe = pipeOf(reader, &stacks.Thread{ID: reader, Kernel: "anon_pipe_read"})
	}
	if pipe == "" {
		t.Fatal("the pipe is not found")
	}
	if all := writing([]verdict.Child{{PID: other}, {PID: writer}, {PID: 1<<22 + 1}}, pipe); len(all) != 1 || all[0].PID != writer {
		t.Errorf("%v could write to %s, want process %d alone", all, pipe, writer)
	}
	if got := pipeOf(reader, &stacks.Thread{ID: reader, Kernel: "futex_do_wait"}); got != "" {
		t.Errorf("a thread that waits for a lock reads from %s", got)
	}
}

// TestForkServer: the server of multiprocessing is a helper, unless it runs the program's file.
func TestForkServer(t *testing.T) {
	t.Parallel()
	const lib = "/usr/lib/python3.14/multiprocessing/"
	server := stacks.Frame{Func: "main", File: lib + "forkserver.py", Line: 200}
	if got := ownFrames([]stacks.Frame{{Func: "EpollSelector.select", File: "/usr/lib/python3.14/selectors.py"}, server}); got != nil {
		t.Errorf("a server that waits has calls of its own: %v", got)
	}
	program := stacks.Frame{Func: "<module>", File: "/srv/train.py", Line: 14}
	got := ownFrames([]stacks.Frame{program, {Func: "import_main_path", File: lib + "spawn.py"}, server})
	if len(got) != 2 || got[0] != program || !importsProgram(got) {
		t.Errorf("a server that imports the program has the calls %v", got)
	}
}

// TestSlept: a thread that sleeps between short looks is told from one that computes, in whatever state it is at one moment.
func TestSlept(t *testing.T) {
	t.Parallel()
	if useOf(1, 1).wanted == 0 {
		t.Skip("this kernel does not tell for how long threads have run")
	}
	for program, want := range map[string]bool{
		"while true; do read -t 0.1 line <> <(:); done": true,
		"while true; do :; done":                        false,
	} {
		pid := running(t, 1, "bash", "-c", "echo ready; "+program)
		got := !want
		for limit := time.Now().Add(time.Minute); got != want && time.Now().Before(limit); {
			before := useOf(pid, pid)
			time.Sleep(500 * time.Millisecond)
			got = slept(before, useOf(pid, pid))
		}
		if got != want {
			t.Errorf("%s: slept: %v", program, got)
		}
	}
	now := time.Now()
	for _, c := range []struct {
		before, after use
		want          bool
	}{
		{use{1, time.Second, now}, use{1, time.Second, now.Add(time.Second)}, true},
		{use{1, time.Second, now}, use{1, 1500 * time.Millisecond, now.Add(time.Second)}, false},
		{use{1, time.Second, now}, use{2, time.Second, now.Add(time.Second)}, false},
		{use{1, 0, now}, use{1, 0, now.Add(time.Second)}, false},
		{use{1, time.Second, now}, use{1, time.Second, now.Add(time.Millisecond)}, false},
	} {
		if got := slept(c.before, c.after); got != c.want {
			t.Errorf("%+v, %+v: %v", c.before, c.after, got)
		}
	}
}
