// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

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
