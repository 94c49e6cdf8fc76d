// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// shows waits until the screen has a line that matches each of the patterns, and returns its lines.
func (p *terminal) shows(patterns ...string) []string {
	p.t.Helper()
	var missing string
	for limit := time.Now().Add(60 * time.Second); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		text := strings.Join(p.screen.Lines(true), "\n")
		missing = ""
		for _, pattern := range patterns {
			if !regexp.MustCompile("(?m)" + pattern).MatchString(text) {
				missing = pattern
			}
		}
		if missing == "" {
			return p.screen.Lines(true)
		}
	}
	p.t.Fatalf("the screen never showed %q:\n%s", missing, strings.Join(p.screen.Lines(true), "\n"))
	return nil
}

// leftAsItWas checks what the command leaves behind: the modes of the terminal, and the cursor on a free line.
func (p *terminal) leftAsItWas() {
	p.t.Helper()
	now, err := unix.IoctlGetTermios(int(p.master.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	if *now != *p.modes {
		p.t.Errorf("the modes of the terminal have changed: %+v, %+v", *p.modes, *now)
	}
	if column, free := p.screen.Cursor(); column != 0 || !free {
		p.t.Errorf("the cursor is in column %d, free %v:\n%s", column, free, strings.Join(p.screen.Lines(false), "\n"))
	}
	if unknown := p.screen.Unknown(); len(unknown) > 0 {
		p.t.Errorf("sequences of another kind: %q", unknown)
	}
}

// resize changes the size of the terminal. What the command draws at this moment may still have the old size, so lines of
// the view may stay behind; the test of package tui, which is not at the mercy of time, excludes that otherwise.
func (p *terminal) resize(width, height int) {
	p.t.Helper()
	p.screen.Resize(width, height)
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(height), Col: uint16(width)}); err != nil {
		p.t.Fatal(err)
	}
}

// bars is a worker that draws a progress bar as tqdm does, with lines in between, until the file go appears. All ranks
// print one line again and again: on a busy machine one may be too late for it to be folded.
const bars = `echo line of $RANK
i=0; while [ ! -e $GO ]; do i=$((i+1)); printf '\r%3d%%|## | %d/100' $i $i >&2; [ $((i%8)) != 1 ] || echo hello from all; [ $i != 99 ] || i=0; sleep 0.05; done
echo >&2; echo rank $RANK is done; [ -z "$FAIL" ] || [ $RANK != 1 ] || exit 3`

// liveRun starts a job of three workers with progress bars. goes lets them end.
func liveRun(t *testing.T, env []string, options ...string) (p *terminal, goes func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go")
	env = append(env, "XDG_STATE_HOME="+t.TempDir(), "GO="+file)
	args := append(append([]string{"run", "--nproc-per-node", "3"}, options...), "sh", "-c", strings.ReplaceAll(bars, "$", "$$"))
	return onTerminal(t, env, args...), func() {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSuspended: Ctrl-Z leaves the terminal to the shell. What that prints is not drawn over, in the background the launcher draws
// nothing below its output, and in the foreground the view stands below everything.
func TestSuspended(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shell := `set -m
cohort run --nproc-per-node 2 --evidence - sh -c 'while [ ! -e $$DIR/go ]; do echo tick; echo $$RANK: $(ls $$DIR); sleep 0.1; done'
printf 'the shell speaks\n%.0s' 1 2 3 4 5 6
touch $DIR/stopped
while [ ! -e $DIR/bg ]; do sleep 0.05; done
bg >/dev/null
while [ ! -e $DIR/fg ]; do sleep 0.05; done
fg >/dev/null`
	p := commandOnTerminal(t, []string{"DIR=" + dir, "XDG_STATE_HOME=" + dir}, exec.Command("bash", "-c", shell))
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const view = `^ranks 0-1 run`
	p.shows(view)
	if _, err := p.master.Write([]byte{26}); err != nil {
		t.Fatal(err)
	}
	p.shows(`^the shell speaks$`)
	for limit := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "stopped")); err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the shell does not continue")
		}
	}
	speaks := func(when string) {
		t.Helper()
		if n := strings.Count(strings.Join(p.screen.Lines(true), "\n"), "the shell speaks"); n != 6 {
			t.Errorf("%s: %d of 6 lines of the shell:\n%s", when, n, strings.Join(p.screen.Lines(true), "\n"))
		}
	}
	hidden := func(when string) {
		t.Helper()
		if text := strings.Join(p.screen.Lines(true), "\n"); regexp.MustCompile("(?m)" + view).MatchString(text) {
			t.Errorf("%s the view stands there:\n%s", when, text)
		}
	}
	speaks("stopped")
	hidden("while it is stopped")
	touch("bg")
	touch("in-background")
	p.shows(`in-background`)
	speaks("in the background")
	hidden("in the background")
	touch("fg")
	p.shows(view)
	touch("go")
	if code := p.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	speaks("at the end")
	hidden("at the end")
	if unknown := p.screen.Unknown(); len(unknown) > 0 {
		t.Errorf("sequences of another kind: %q", unknown)
	}
}

// TestLiveView: below the output of the workers, which is folded, stand the state of the job and one line for the
// progress bar of each rank, at every size of the terminal. At the end only output and report are left.
func TestLiveView(t *testing.T) {
	t.Parallel()
	p, goes := liveRun(t, []string{"FAIL=1"}, "--max-restarts", "1")
	lines := p.shows(`^\[ranks 0-2\] hello from all$`, `^\[rank 1\] line of 1$`, `^cohort run sh, 3 ranks, attempt 1, 1 restart allowed, `,
		`^ranks 0-2 run, `, `^rank 0 +\d+%\|## \| \d+/100$`, `^rank 1 +\d+%`, `^rank 2 +\d+%`)
	if n := strings.Count(strings.Join(lines, "\n"), "%|##"); n != 3 {
		t.Errorf("%d bars for three ranks:\n%s", n, strings.Join(lines, "\n"))
	}
	if !strings.Contains(p.text(), "\x1b[35mrank 1 \x1b[0m") {
		t.Errorf("the bars have no colour:\n%q", p.text())
	}
	p.resize(24, 12) // narrower, so that the terminal breaks the lines that stand there
	p.shows(`^cohort run sh, 3 ran\.\.\.$`, `^rank 0 +\d+%`, `^rank 2 +\d+%`)
	p.resize(90, 6) // low: the first lines only
	p.shows(`^cohort run sh, 3 ranks, attempt 1`, `^and \d more$`)
	p.resize(100, 30)
	p.shows(`^rank 2 +\d+%`)
	goes()
	p.shows(`rank 1 exited with code 3; restart 1 of 1$`, `^cohort: the job failed: rank 1 exited with code 3`)
	if code := p.ends(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	p.leftAsItWas()
	all := strings.Join(p.screen.Lines(true), "\n")
	if !regexp.MustCompile(`(?m)^\[ranks? [^\]]*\] +\d+%\|## \| \d+/100$`).MatchString(all) {
		t.Errorf("the last state of the bars is not printed:\n%s", all)
	}
}

// TestLiveViewEnds: however the job ends, the terminal is as it was before.
func TestLiveViewEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(p *terminal)
		last string
		dies bool // without a chance to wipe the view
	}{
		"Ctrl-C":                 {func(p *terminal) { _, _ = p.master.WriteString("\x03") }, `the job was ended by SIGINT`, false},
		"SIGTERM":                {func(p *terminal) { _ = p.cmd.Process.Signal(syscall.SIGTERM) }, `the job was ended by SIGTERM`, false},
		"a worker is killed":     {func(p *terminal) { killWorker(p, 1) }, `rank 1 was killed`, false},
		"a panic":                {func(p *terminal) { _ = p.cmd.Process.Signal(syscall.SIGABRT) }, `^SIGABRT: abort$`, true},
		"kill -9":                {func(p *terminal) { _ = p.cmd.Process.Kill() }, ``, true},
		"the supervisor's death": {killSupervisor, `the supervisor process was killed`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := liveRun(t, nil)
			p.shows(`^rank 0 +\d+%`, `^rank 2 +\d+%`)
			c.end(p)
			p.ends()
			text := strings.Join(p.screen.Lines(true), "\n")
			if !regexp.MustCompile("(?m)" + c.last).MatchString(text) {
				t.Errorf("no %q in:\n%s", c.last, text)
			}
			if !c.dies && (strings.Contains(text, "cohort run sh") || strings.Contains(text, "ranks 0-2 run")) {
				t.Errorf("the view is left behind:\n%s", text)
			}
			p.leftAsItWas()
		})
	}
}

// children returns the processes whose parent is pid.
func children(t *testing.T, pid int) []int {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(pid) + "/children")
	if err != nil {
		t.Skipf("this machine cannot list the children of a process: %v", err)
	}
	var all []int
	for field := range strings.FieldsSeq(string(text)) {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// supervisorOf finds the supervisor of a launcher: its threads start it.
func supervisorOf(p *terminal) int {
	p.t.Helper()
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/task/*/children")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, name := range tasks {
		if text, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(text)) != "" {
			pid, err := strconv.Atoi(strings.Fields(string(text))[0])
			if err != nil {
				p.t.Fatal(err)
			}
			return pid
		}
	}
	p.t.Fatal("no supervisor")
	return 0
}

func killSupervisor(p *terminal) { _ = syscall.Kill(supervisorOf(p), syscall.SIGKILL) }

func killWorker(p *terminal, n int) {
	workers := children(p.t, supervisorOf(p))
	if len(workers) != 3 {
		p.t.Fatalf("workers %v", workers)
	}
	_ = syscall.Kill(workers[n], syscall.SIGKILL)
}

// TestNoLiveView: a dumb terminal and --no-live get lines alone.
func TestNoLiveView(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ env, options []string }{
		"dumb":      {[]string{"TERM=dumb"}, nil},
		"--no-live": {nil, []string{"--no-live"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, goes := liveRun(t, c.env, c.options...)
			p.shows(`\] hello from all$`)
			goes()
			p.shows(`\] rank 2 is done$`)
			if code := p.ends(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if strings.Contains(p.text(), "cohort run sh") || regexp.MustCompile(`\x1b\[\d*[AJK]`).MatchString(p.text()) {
				t.Errorf("the view is shown:\n%q", p.text())
			}
			p.leftAsItWas()
		})
	}
}

// TestLiveViewWaits: who is missing, and since when: a node that has not come, a rank that has not come to the store.
func TestLiveViewWaits(t *testing.T) {
	t.Parallel()
	port, release, err := testkit.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	p := onTerminal(t, []string{"XDG_STATE_HOME=" + t.TempDir()}, "run", "--nnodes", "2", "--node-rank", "0", "--rdzv-backend", "c10d",
		"--rdzv-endpoint", "127.0.0.1:"+strconv.Itoa(port), "true")
	p.shows(`^cohort run true, `, `^1 of 2 nodes are present for \d.*; node 1 is missing$`)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.ends()
	p.leftAsItWas()

	q := onTerminal(t, []string{"XDG_STATE_HOME=" + t.TempDir()}, "run", "--nproc-per-node", "3", "sh", "-c",
		"[ $RANK = 1 ] && exec sleep 1000; exec cohort store wait --addr $MASTER_ADDR:$MASTER_PORT --timeout 1000s config")
	q.shows(`^ranks 0, 2 wait in the store for \d.*s; rank 1 has not joined \(key .*config\)$`)
	_ = q.cmd.Process.Signal(syscall.SIGTERM)
	q.ends()
	q.leftAsItWas()
}

// TestLiveViewOfOtherNodes: the view of one node shows the ranks of all, their progress bars included, and who has not come
// to the store, though the other node has no terminal.
func TestLiveViewOfOtherNodes(t *testing.T) {
	t.Parallel()
	port, release, err := testkit.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	release()
	node := func(rank int) []string {
		return []string{
			"run", "--nnodes", "2", "--node-rank", strconv.Itoa(rank), "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--evidence", "-",
			"--rdzv-endpoint", "127.0.0.1:" + strconv.Itoa(port), "--rdzv-conf", fmt.Sprint("is_host=", 1-rank),
		}
	}
	const script = `case $$RANK in
0) exec cohort store wait --addr $$MASTER_ADDR:$$MASTER_PORT --timeout 1000s config;;
1) printf '\r 7%%|## | 7/100'; exec sleep 1000;;
2) exec cohort store wait --addr $$MASTER_ADDR:$$MASTER_PORT --timeout 1000s config;;
3) printf '\r 45%%|#### | 45/100'; exec sleep 1000;;
esac`
	other := exec.Command("cohort", append(node(1), "sh", "-c", script)...)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	t.Cleanup(func() { _ = other.Process.Kill() })
	p := onTerminal(t, []string{"XDG_STATE_HOME=" + t.TempDir()}, append(node(0), "sh", "-c", script)...)
	p.shows(`^cohort run sh, 4 ranks, `, `^nodes: 0 .* \(here\) ranks 0-1; 1 .* ranks 2-3$`, `^ranks 0-3 run, `,
		`^rank 1 +7%\|## \| 7/100$`, `^rank 3 +45%\|#### \| 45/100$`,
		`^ranks 0, 2 wait in the store for \d.*s; ranks 1, 3 have not joined \(key .*config\)$`)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.ends()
	p.leftAsItWas()
	<-ended
}

// TestLiveViewOfMany: 64 ranks with bars of wide characters and lines longer than the screen, on a terminal that is narrow, then low, and
// whose launcher is stopped for a while, leave the terminal as it was.
func TestLiveViewOfMany(t *testing.T) {
	t.Parallel()
	const script = `echo 長い行 $RANK 長い行 $RANK 長い行 $RANK 長い行 $RANK 長い行; printf '\r進捗%d%%|##\t|' $RANK; exec sleep 1000`
	p := onTerminal(t, []string{"XDG_STATE_HOME=" + t.TempDir(), "NO_COLOR=1"}, "run", "--nproc-per-node", "64", "sh", "-c",
		strings.ReplaceAll(script, "$", "$$"))
	p.shows(`^cohort run sh, 64 ranks, `, `^ranks 0-63 run, `, `^rank 0 進捗0%\|## \|$`, `^and \d+ more$`)
	p.resize(13, 20)
	p.shows(`^cohort ru\.\.\.$`, `^rank 0 進捗$|^rank 0 進\.\.\.$`)
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	p.resize(60, 8)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	p.shows(`^cohort run sh, 64 ranks, `, `^and \d+ more$`)
	if regexp.MustCompile(`\x1b\[\d*m`).MatchString(p.text()) {
		t.Error("there are colours")
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.ends()
	p.leftAsItWas()
}
