// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func TestMain(m *testing.M) {
	testkit.RunWaitingTests()
	testscript.Main(m, map[string]func(){"cohort": main, "torchrun": main, "rpcrank": rpcRank, "sayrank": sayRank})
}

// TestScripts runs the command as a user would; each file in testdata is one story.
func TestScripts(t *testing.T) {
	// Under nohup SIGHUP is ignored, by the commands of the scripts too, unless the test catches it.
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hup) })
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Vars = slices.DeleteFunc(env.Vars, func(v string) bool {
				return strings.HasPrefix(v, "MASTER_") || strings.HasPrefix(v, "NO_COLOR")
			})
			env.Setenv("TERM", "xterm-256color")
			env.Setenv("UNIQUE", strconv.Itoa(os.Getpid())) // for the names of jobs: another run of these tests may go on beside this one
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, ".state"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"store": startStore, "freeport": freePort, "exits": exits, "signal": sendSignal, "httpget": httpGet,
			"rpcworld": rpcWorld, "waitfor": waitFor, "nochildren": noChildren, "normalise": normalise, "eventually": eventually,
			"jsonlines": jsonLines, "alljson": allJSON,
		},
	})
}

// store VAR: serves a store for this script and puts its address into VAR.
func startStore(ts *testscript.TestScript, _ bool, args []string) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = server.Close() })
	ts.Setenv(args[0], server.Addr().String())
}

// freeport VAR: puts the address of a port that is free into VAR.
func freePort(ts *testscript.TestScript, _ bool, args []string) {
	port, release, err := testkit.TakePort()
	ts.Check(err)
	ts.Defer(release)
	ts.Setenv(args[0], net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// exits CODE PROGRAM ARGS...: runs a program that must end with this code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		code = ended.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// signal TERM|INT|KILL|USR1|HUP|STOP|CONT|XCPU [WORD]: sends a signal to all programs in the background, or to those with WORD in their
// arguments.
func sendSignal(ts *testscript.TestScript, _ bool, args []string) {
	signals := map[string]os.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL,
		"USR1": syscall.SIGUSR1, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "HUP": syscall.SIGHUP, "XCPU": syscall.SIGXCPU,
	}
	for _, cmd := range ts.BackgroundCmds() {
		if len(args) > 1 && !slices.Contains(cmd.Args, args[1]) {
			continue
		}
		if err := cmd.Process.Signal(signals[args[0]]); !errors.Is(err, os.ErrProcessDone) { // which one that came before may end
			ts.Check(err)
		}
	}
}

// httpget URL FILE: writes what the URL answers into FILE, with the status in its first line.
func httpGet(ts *testscript.TestScript, _ bool, args []string) {
	client := http.Client{Timeout: 10 * time.Second}
	var response *http.Response
	var err error
	for range 100 { // the server may just be starting
		if response, err = client.Get(args[0]); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Check(err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), append([]byte(response.Status+"\n"), body...), 0o600))
}

// waitfor ADDR: waits until something listens there.
func waitFor(ts *testscript.TestScript, _ bool, args []string) {
	for range 200 {
		conn, err := net.Dial("tcp", args[0])
		if err == nil {
			_ = conn.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("nothing listens on %s", args[0])
}

// nochildren FILE [COUNT]: fails when a process whose id is named in FILE as "pid N" is alive, or when fewer than COUNT
// are named.
func noChildren(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	pids := regexp.MustCompile(`pid (\d+)`).FindAllStringSubmatch(text, -1)
	if len(args) > 1 && strconv.Itoa(len(pids)) != args[1] {
		ts.Fatalf("%s names %d processes, want %s", args[0], len(pids), args[1])
	}
	for _, match := range pids {
		pid, err := strconv.Atoi(match[1])
		ts.Check(err)
		if alive(pid) {
			ts.Fatalf("process %d is left behind", pid)
		}
	}
}

// alive gives a process that was killed a moment to go; a zombie is dead.
func alive(pid int) bool {
	for range 100 {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

// normalise FILE: replaces what differs from run to run: addresses, ages, rates, sizes.
func normalise(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	for _, r := range []struct{ pattern, by string }{
		{`127\.0\.0\.1:\d+`, "ADDR"},
		{`(?:pid \d+ [^(\n]*)?\(?ADDR\)? +ready`, "CLIENT  ready"}, // the process is known on Linux only
		{`CLIENT +WAITS`, "CLIENT  WAITS"},
		{`"(uptime_s|age_s|elapsed_ms|data_bytes)":[0-9.]+`, `"$1":0`},
		{`"(operations_per_s|num_keys|stats|native|validate|check|ping|set|wait|get|add)":[0-9.]+(e[+-]\d+)?`, `"$1":N`},
		{`"operations":\d+`, `"operations":N`},
		{`up [0-9a-z.]+`, "up AGE"},
		{`operations .*`, "operations RATES"},
		{`(?m)^(\d+ms|[0-9.]+s|\d+m\d+s) +`, "AGE  "}, // the column is as wide as the longest age
		{`after [0-9.]+m?s`, "after AGE"},
		{`keys +(\d+), [0-9.]+ K?i?B`, "keys        $1, SIZE"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.by)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// eventually REGEXP PROGRAM ARGS...: runs a program again and again until its output matches.
func eventually(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile(args[0])
	var out string
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		_ = ts.Exec(args[1], args[2:]...)
		if out = ts.ReadFile("stdout"); want.MatchString(out) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("no output matched %s; the last was\n%s", args[0], out)
}
