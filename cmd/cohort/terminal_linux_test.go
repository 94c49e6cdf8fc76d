// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/termtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// terminal runs the command on a pseudo-terminal of 100 columns.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	done   chan struct{}
	screen *termtest.Screen
	modes  *unix.Termios // at the start

	mu  sync.Mutex
	out bytes.Buffer
}

func onTerminal(t *testing.T, env []string, args ...string) *terminal {
	t.Helper()
	path, err := exec.LookPath("cohort")
	if err != nil {
		t.Fatal(err)
	}
	return commandOnTerminal(t, env, exec.Command(path, args...))
}

func commandOnTerminal(t *testing.T, env []string, cmd *exec.Cmd) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100})
	}
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	term := &terminal{t: t, cmd: cmd, master: master, done: make(chan struct{}), screen: termtest.New(100, 30)}
	if term.modes, err = unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
		t.Fatal(err)
	}
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NO_COLOR=") && !strings.HasPrefix(v, "TERM=") {
			term.cmd.Env = append(term.cmd.Env, v)
		}
	}
	term.cmd.Env = append(append(term.cmd.Env, "TERM=xterm-256color"), env...)
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	go func() {
		defer close(term.done)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			term.mu.Lock()
			term.out.Write(buf[:n])
			_, _ = term.screen.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		_ = term.cmd.Wait()
		<-term.done
		_ = master.Close()
	})
	return term
}

func (p *terminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// slow is how long a command may take on a busy machine for what takes seconds elsewhere.
const slow = 2 * time.Minute

// expect waits until the output contains words.
func (p *terminal) expect(words string) {
	p.t.Helper()
	for limit := time.Now().Add(slow); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		if strings.Contains(p.text(), words) {
			return
		}
	}
	text := p.text()
	p.t.Fatalf("the terminal never showed %q:\n%q", words, text[max(0, len(text)-4000):])
}

// ends waits for the command and returns its exit code.
func (p *terminal) ends() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(slow):
		p.t.Fatalf("the command does not end:\n%q", p.text())
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func TestTopOnATerminal(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for _, way := range []string{"key", "signal"} {
		p := onTerminal(t, nil, "store", "top", "--addr", server.Addr().String(), "--every", "100ms")
		p.expect("no waiters")
		p.expect("q ends")
		if way == "key" {
			if _, err := p.master.WriteString("q"); err != nil {
				t.Fatal(err)
			}
		} else if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := p.ends(); code != 0 {
			t.Errorf("ended by a %s: exit code %d\n%q", way, code, p.text())
		}
		if !strings.Contains(p.text(), "\x1b[?1049h") || !strings.Contains(p.text(), "\x1b[?1049l") {
			t.Errorf("the screen was not switched and switched back:\n%q", p.text())
		}
	}
}

func TestDemoOnATerminal(t *testing.T) {
	for _, c := range []struct {
		name   string
		env    []string
		has    []string
		hasNot []string
	}{
		{"colours", nil, []string{"\x1b[32m+  meet", "\x1b[4A", "store: "}, nil},
		{"NO_COLOR", []string{"NO_COLOR=1"}, []string{"+  meet", "\x1b[4A"}, []string{"\x1b[32m"}},
		{"dumb", []string{"TERM=dumb"}, []string{"joined as rank 1 of 2"}, []string{"\x1b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := onTerminal(t, c.env, "demo", "--workers", "2", "--torch", "never", "--timeout", slow.String())
			if code := p.ends(); code != 0 {
				t.Errorf("exit code %d\n%q", code, p.text())
			}
			for _, words := range append(c.has, "done:") {
				if !strings.Contains(p.text(), words) {
					t.Errorf("the output lacks %q:\n%q", words, p.text())
				}
			}
			for _, words := range c.hasNot {
				if strings.Contains(p.text(), words) {
					t.Errorf("the output has %q:\n%q", words, p.text())
				}
			}
		})
	}
}

// Ctrl-C on the terminal goes to the demonstration alone, which takes its workers with it; so does a sudden death.
func TestDemoLeavesNothingBehind(t *testing.T) {
	for _, how := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		p := onTerminal(t, []string{"TERM=dumb"}, "demo")
		p.expect("waiting: rank 0 for demo/barrier/open")
		var pids []int
		for line := range strings.Lines(p.text()) {
			var pid int
			if _, after, found := strings.Cut(line, "(pid "); found {
				if _, err := fmt.Sscanf(after, "%d)", &pid); err == nil {
					pids = append(pids, pid)
				}
			}
		}
		if len(pids) < 3 { // the report of one may still be on its way
			t.Fatalf("%d workers are named:\n%s", len(pids), p.text())
		}
		if how == syscall.SIGINT {
			_, _ = p.master.WriteString("\x03") // as the keyboard does
		} else {
			_ = p.cmd.Process.Kill()
		}
		if code := p.ends(); code == 0 {
			t.Errorf("%v: exit code 0", how)
		}
		for _, pid := range pids {
			if alive(pid) {
				t.Errorf("%v: worker %d is left behind", how, pid)
			}
		}
	}
}

// TestRunOnATerminal: on a terminal lines have the rank before them, in colour, identical ones are joined, and Ctrl-C ends
// the job.
func TestRunOnATerminal(t *testing.T) {
	p := onTerminal(t, []string{"XDG_STATE_HOME=" + t.TempDir()}, "run", "--nproc-per-node", "3", "sh", "-c",
		"echo mine $RANK; while :; do echo same; sleep 0.2; done") // again and again: on a busy machine a rank may be late
	p.expect("[ranks 0-2]\x1b[0m same")
	p.expect("[rank 1]\x1b[0m mine 1")
	if _, err := p.master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	p.expect("the job was ended by SIGINT")
	if code := p.ends(); code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// TestDebuggerOnATerminal: a job of one worker keeps the terminal: prompts without a line end are shown, and what is typed
// arrives.
func TestDebuggerOnATerminal(t *testing.T) {
	p := onTerminal(t, nil, "run", "sh", "-c", "printf '(Pdb) '; read line; echo got $line")
	p.expect("(Pdb) ")
	if _, err := p.master.WriteString("next\n"); err != nil {
		t.Fatal(err)
	}
	p.expect("got next")
	if code := p.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
