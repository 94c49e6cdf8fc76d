// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary plays three parts: the test, a supervisor, and a launcher that is killed.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "supervisor":
		os.Exit(Main())
	case len(os.Args) == 3 && os.Args[1] == "launcher":
		launcher(os.Args[2])
	}
	os.Exit(m.Run())
}

var argv = []string{"cohort", "supervisor"}

// launcher starts a worker with children of its own, says who they are, and waits to be killed.
func launcher(script string) {
	client, err := Start(argv)
	if err == nil {
		err = client.Spawn(0, Command{Args: []string{"sh", "-c", script}}, [3]*os.File{os.Stdin, os.Stdout, os.Stderr})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("supervisor", client.PID())
	select {}
}

// family is a worker with a child, a child in its own session, and one whose parent has ended. Each says who it is.
const family = `sleep 1000 & echo pid $!
setsid sleep 1000 & echo pid $!
sh -c 'setsid sleep 1000 & echo pid $!'
trap '' TERM INT
echo pid $$
wait
while :; do sleep 1000; done`

func limit(t *testing.T) <-chan time.Time {
	t.Helper()
	return time.After(30 * time.Second)
}

func start(t *testing.T) *Client {
	t.Helper()
	client, err := Start(argv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// next returns the next event.
func (client *Client) next(t *testing.T) Event {
	t.Helper()
	select {
	case e, open := <-client.Events():
		if !open {
			t.Fatal("the supervisor has ended")
		}
		return e
	case <-limit(t):
		t.Fatal("no event")
	}
	panic("not reached")
}

// spawn starts a worker with its output in a pipe.
func (client *Client) spawn(t *testing.T, id int, c Command) *bufio.Reader {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Spawn(id, c, [3]*os.File{null, in, os.Stderr}); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	_ = null.Close()
	t.Cleanup(func() { _ = out.Close() })
	return bufio.NewReader(out)
}

// pids reads n lines "pid N".
func pids(t *testing.T, out *bufio.Reader, n int) []int {
	t.Helper()
	var all []int
	for len(all) < n {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatalf("after %v: %v", all, err)
		}
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "pid "); found {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, pid)
		}
	}
	return all
}

// waitOwnSession waits until a process that was started with setsid has its own session.
func waitOwnSession(t *testing.T, pid int) {
	t.Helper()
	end := limit(t)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])); f[3] == strconv.Itoa(pid) {
			return
		}
		select {
		case <-end:
			t.Fatalf("process %d has no session of its own", pid)
		case <-time.After(time.Millisecond):
		}
	}
}

func lives(pid int) bool {
	_, zombie, ok := parentOf(pid)
	return ok && !zombie
}

// waitGone waits until none of the processes lives.
func waitGone(t *testing.T, pids ...int) {
	t.Helper()
	end := limit(t)
	for slices.ContainsFunc(pids, lives) {
		select {
		case <-end:
			for _, pid := range slices.DeleteFunc(pids, func(pid int) bool { return !lives(pid) }) {
				t.Errorf("process %d lives", pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestSpawn(t *testing.T) {
	t.Parallel()
	client := start(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	out := client.spawn(t, 3, Command{
		Args: []string{"sh", "-c", `echo "$COHORT_TEST $PWD"; exit 7`},
		Set:  []string{"COHORT_TEST=a=b"}, Dir: dir,
	})
	if e := client.next(t); e.Started == nil || e.Started.ID != 3 || e.Started.PID == 0 {
		t.Fatalf("event %+v, want started", e)
	}
	if line, _ := out.ReadString('\n'); line != "a=b "+dir+"\n" {
		t.Errorf("it says %q", line)
	}
	if e := client.next(t); e.Exited == nil || e.Exited.ID != 3 || e.Exited.Code != 7 || e.Exited.RSS < 4096 {
		t.Errorf("event %+v, want an end with 7", e)
	}
	for id, args := range [][]string{{"no-such-program"}, {"/no/such/program"}, {}, {t.TempDir()}} {
		client.spawn(t, id, Command{Args: args})
		if e := client.next(t); e.Refused == nil || e.Refused.ID != id || e.Refused.Error == "" {
			t.Errorf("%v: event %+v, want refused", args, e)
		}
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	client := start(t)
	out := client.spawn(t, 0, Command{Args: []string{"sh", "-c", family}})
	client.next(t)
	all := pids(t, out, 4)
	waitOwnSession(t, all[1])
	waitOwnSession(t, all[2])
	if err := client.Send([]int{0, 5}, int(syscall.SIGKILL)); err != nil { // 5 does not exist
		t.Fatal(err)
	}
	if e := client.next(t); e.Exited == nil || e.Exited.Code != -9 {
		t.Errorf("event %+v, want an end by signal 9", e)
	}
	waitGone(t, all[0], all[3]) // the group
	if !lives(all[1]) || !lives(all[2]) {
		t.Error("a signal to the group ended processes outside of it")
	}
	if err := client.Sweep(false); err != nil {
		t.Fatal(err)
	}
	if e := client.next(t); e.Swept == nil || e.Swept.Killed != 2 || e.Swept.Left != 0 {
		t.Errorf("event %+v, want two killed", e)
	}
	waitGone(t, all...)
	if err := client.Sweep(true); err != nil {
		t.Fatal(err)
	}
	if e := client.next(t); e.Swept == nil || e.Swept.Killed != 0 {
		t.Errorf("event %+v, want nothing left to kill", e)
	}
	// A group that has ended is not signalled: its number may belong to another one.
	if err := client.Send([]int{0}, int(syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
}

// TestSweepSparesWorkers: leftovers of one worker go, another worker and its children stay.
func TestSweepSparesWorkers(t *testing.T) {
	t.Parallel()
	client := start(t)
	stay := client.spawn(t, 0, Command{Args: []string{"sh", "-c", family}})
	client.next(t)
	leave := client.spawn(t, 1, Command{Args: []string{"sh", "-c", "setsid sleep 1000 & echo pid $!"}})
	staying, leaving := pids(t, stay, 4), pids(t, leave, 1)
	for range 2 {
		client.next(t) // started, exited
	}
	if err := client.Sweep(false); err != nil {
		t.Fatal(err)
	}
	if e := client.next(t); e.Swept == nil || e.Swept.Killed < 1 {
		t.Errorf("event %+v", e)
	}
	waitGone(t, leaving...)
	if !lives(staying[0]) || !lives(staying[3]) {
		t.Error("a worker that lives was swept")
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	client := start(t)
	out := client.spawn(t, 0, Command{Args: []string{"sh", "-c", family}})
	client.next(t)
	all := pids(t, out, 4)
	if err := client.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, pid := range all {
		if lives(pid) {
			t.Errorf("process %d outlives Close", pid)
		}
	}
	if err := client.Send([]int{0}, 15); err == nil {
		t.Error("a request after Close succeeds")
	}
}

// runLauncher starts a launcher and returns it with its supervisor and the processes below.
func runLauncher(t *testing.T) (cmd *exec.Cmd, supervisor int, below []int) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0], "launcher", family)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	for len(below) < 4 || supervisor == 0 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("launcher: %q, %v", line, err)
		}
		kind, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("launcher: %q", line)
		}
		if kind == "supervisor" {
			supervisor = pid
		} else {
			below = append(below, pid)
		}
	}
	return cmd, supervisor, below
}

// TestKilledLauncher: kill -9 of the launcher leaves nothing behind. torchrun leaves all workers as orphans.
func TestKilledLauncher(t *testing.T) {
	t.Parallel()
	cmd, supervisor, below := runLauncher(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	waitGone(t, append(below, supervisor)...)
}

// TestKilledSupervisor: after kill -9 of the supervisor, Close removes what was below it, and leaves alone what the program of the
// launcher has started itself: a child, one in its own session, and one whose parent has ended.
func TestKilledSupervisor(t *testing.T) {
	t.Parallel()
	client, err := Start(argv)
	if err != nil {
		t.Fatal(err)
	}
	out := client.spawn(t, 0, Command{Args: []string{"sh", "-c", family}, Set: []string{"COHORT_TEST_MARK=1"}, Mark: "COHORT_TEST_MARK=1"})
	client.next(t)
	all := pids(t, out, 4)
	waitOwnSession(t, all[1])
	waitOwnSession(t, all[2])
	own := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(family, "trap '' TERM INT", "", 1))
	own.Env = append(os.Environ(), "COHORT_TEST_MARK=12")
	ownOut, err := own.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	others := pids(t, bufio.NewReader(ownOut), 4)
	defer func() {
		for _, pid := range others {
			if !lives(pid) {
				t.Errorf("process %d, which the supervisor has not started, was killed", pid)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = own.Wait()
	}()
	if err := syscall.Kill(client.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range client.Events() { // until it is closed
	}
	if err := client.Close(); err == nil {
		t.Error("Close says nothing about the death of the supervisor")
	}
	waitGone(t, all...)
}

func TestSignalsDoNotEndTheSupervisor(t *testing.T) {
	t.Parallel()
	client := start(t)
	client.spawn(t, 0, Command{Args: []string{"true"}})
	client.next(t) // it is up
	client.next(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1} {
		if err := syscall.Kill(client.PID(), s); err != nil {
			t.Fatal(err)
		}
	}
	client.spawn(t, 1, Command{Args: []string{"true"}})
	if e := client.next(t); e.Started == nil {
		t.Errorf("event %+v", e)
	}
}

// TestWorkersHaveDefaultSignals: what the supervisor survives still ends a worker.
func TestWorkersHaveDefaultSignals(t *testing.T) {
	t.Parallel()
	client := start(t)
	for id, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGPIPE} {
		client.spawn(t, id, Command{Args: []string{"sh", "-c", fmt.Sprintf("kill -%d $$; exit 0", s)}})
		client.next(t)
		if e := client.next(t); e.Exited == nil || e.Exited.Code != -int(s) {
			t.Errorf("after %v: %+v, %+v", s, e, e.Exited)
		}
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	got := merge([]string{"A=1", "B=2", "C=3=4"}, []string{"B=x", "D="})
	if want := []string{"A=1", "C=3=4", "B=x", "D="}; !slices.Equal(got, want) {
		t.Errorf("merge returns %q, want %q", got, want)
	}
}

// TestBytes: arguments, variables and folders reach a worker as they are, also those that are not UTF-8.
func TestBytes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d\xff")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	client := start(t)
	out := client.spawn(t, 0, Command{
		Args: []string{"sh", "-c", `printf '%s|%s|%s\n' "$0" "$NAME" "${PWD##*/}"`, "a\xfe\x80"},
		Set:  []string{"NAME=v\xc3"}, Dir: dir,
	})
	if line, err := out.ReadString('\n'); line != "a\xfe\x80|v\xc3|d\xff\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestCPUs: a worker runs on the processors that it was given, and what the supervisor starts afterwards on all of them again.
func TestCPUs(t *testing.T) {
	t.Parallel()
	client := start(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	show := []string{"sh", "-c", "grep Cpus_allowed_list /proc/self/status"}
	for id, cpus := range [][]int{{0}, nil} {
		if err = client.Spawn(id, Command{Args: show, CPUs: cpus}, [3]*os.File{os.Stdin, w, os.Stderr}); err != nil {
			t.Fatal(err)
		}
		for client.next(t).Exited == nil {
		}
	}
	if err = client.Spawn(2, Command{Args: show, CPUs: []int{1000}}, [3]*os.File{os.Stdin, w, os.Stderr}); err != nil {
		t.Fatal(err)
	}
	if e := client.next(t); e.Refused == nil || !strings.Contains(e.Refused.Error, "to bind it to processors [1000]") {
		t.Errorf("a processor that is not there: %+v", e)
	}
	_ = w.Close()
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, all, _ := strings.Cut(string(own), "Cpus_allowed_list:")
	all, _, _ = strings.Cut(all, "\n")
	var got []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		_, list, _ := strings.Cut(lines.Text(), ":")
		got = append(got, strings.TrimSpace(list))
	}
	if want := []string{"0", strings.TrimSpace(all)}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestInheritedFiles: what the launcher has inherited is not passed on to the workers.
func TestInheritedFiles(t *testing.T) {
	t.Parallel()
	fd, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0) // without O_CLOEXEC, as what a shell has opened
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }()
	client := start(t)
	if err = client.Spawn(0, Command{Args: []string{"sh", "-c", fmt.Sprintf("[ ! -e /proc/self/fd/%d ]", fd)}},
		[3]*os.File{os.Stdin, os.Stdout, os.Stderr}); err != nil {
		t.Fatal(err)
	}
	for {
		if e := client.next(t); e.Exited != nil {
			if e.Exited.Code != 0 {
				t.Errorf("the worker has descriptor %d", fd)
			}
			return
		}
	}
}

// TestTimesOfWorkers: times of workers have the reading of a clock that cannot be set, so that what ended first, and
// how long it ran, does not depend on the wall clock.
func TestTimesOfWorkers(t *testing.T) {
	before := time.Now()
	client := start(t)
	client.spawn(t, 0, Command{Args: []string{"true"}})
	begun, ended := client.next(t).Started.At, client.next(t).Exited.At
	if !strings.Contains(begun.String(), " m=") || !strings.Contains(ended.String(), " m=") {
		t.Errorf("wall times alone: began %v, ended %v", begun, ended)
	}
	if begun.Before(before) || ended.Before(begun) || time.Now().Before(ended) {
		t.Errorf("asked for at %v, began %v, ended %v", before, begun, ended)
	}
}
