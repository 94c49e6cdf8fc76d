// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
)

const passing = `{"Action":"output","Package":"p","Test":"TestA","Output":"    x_test.go:3: count: 7 rows\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0.1}
`

const skipping = `{"Action":"output","Package":"q","Test":"TestB","Output":"    y_test.go:9: no PyTorch\n"}
{"Action":"skip","Package":"q","Test":"TestB"}
{"Action":"pass","Package":"q","Elapsed":0.1}
`

const crashing = `{"Action":"run","Package":"r","Test":"TestD"}
{"Action":"output","Package":"r","Test":"TestD","Output":"=== RUN   TestD\n"}
{"Action":"run","Package":"r","Test":"TestE"}
{"Action":"pause","Package":"r","Test":"TestE"}
{"Action":"output","Package":"r","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"r","Elapsed":0.1}
`

const subtests = `{"Action":"output","Package":"p","Test":"TestC/x","Output":"    c_test.go:3: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestC/x"}
{"Action":"pass","Package":"p","Test":"TestC/y"}
{"Action":"fail","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p"}
`

// newer is a run with a PyTorch that appeared later, in which things fail with it alone.
const newer = `{"Action":"output","Package":"x","Test":"TestI/torch-newest","Output":"    a_test.go:4: count: only reported: torch-newest: PyTorch 3.0 is newer\n"}
{"Action":"pass","Package":"x","Test":"TestI/torch-newest"}
{"Action":"pass","Package":"x","Test":"TestI"}
{"Action":"fail","Package":"p","Test":"TestA/torch-newest/x"}
{"Action":"fail","Package":"p","Test":"TestA/torch-newest"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:4: interop: uses torch-newest\n"}
{"Action":"fail","Package":"p","Test":"TestB/x"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`

func TestReport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in, want string
		noskip, ok     bool
	}{
		{"pass", passing, "1 passed, 0 failed, 0 skipped\n", true, true},
		{"counts", passing, "  7 rows\n", true, true},
		{"skip allowed", passing + skipping, "skipped 1: no PyTorch", false, true},
		{"skip forbidden", passing + skipping, "required was skipped", true, false},
		{
			"build cannot", passing + strings.Replace(skipping, "no PyTorch", "this build cannot: PyTorch 3 has no libuv", 1),
			"skipped 1: this build cannot", true, true,
		},
		{
			"machine cannot", passing + strings.Replace(skipping, "no PyTorch", "this machine cannot mount a file system", 1),
			"skipped 1: this machine cannot", true, true,
		},
		{"nothing ran", "", "no test was run", false, false},
		{"not JSON", "go: no such module\n" + passing, "go: no such module\n", false, true},
		{
			"fail", passing + `{"Action":"fail","Package":"p","Test":"TestC"}`, "1 passed, 1 failed, 0 skipped\nFAILED p TestC\n",
			false, false,
		},
		{"output of a failure", subtests, "    c_test.go:3: wrong\n", false, false},
		{"names come last", subtests + passing, "2 passed, 2 failed, 0 skipped\nFAILED p TestC/x\n", false, false},
		{
			"newer", newer, "REPORTED p TestA/torch-newest/x (with a PyTorch that is newer than what is known)\nREPORTED p TestB/x",
			true, true,
		},
		{"newer and older", newer + `{"Action":"fail","Package":"p","Test":"TestA/torch-2.6"}`, "FAILED p TestA/torch-2.6\n", true, false},
		{"newer and a crash", newer + crashing, "FAILED r (ended while these were running: TestD)\n", true, false},
		{
			"known", strings.Replace(newer, "only reported", "installation", 1), "FAILED p TestA/torch-newest/x\nFAILED p TestB/x\n",
			true, false,
		},
		{"crash", passing + crashing, "panic: test timed out\nunfinished: r TestD\n", false, false},
		{"name of a crash", passing + crashing, "0 skipped\nFAILED r (ended while these were running: TestD)\n", false, false},
		{"build", passing + `{"Action":"fail","Package":"p","FailedBuild":"p"}`, "FAILED p (did not build)\n", false, false},
		{
			"silent failure", passing + `{"Action":"fail","Package":"p"}`,
			"FAILED p (no test failed, but the package did: see above)\n", false, false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if _, ok := report(strings.NewReader(c.in), &out, c.noskip, nil); ok != c.ok || !strings.Contains(out.String(), c.want) {
				t.Fatalf("ok = %v, output:\n%s", ok, out.String())
			}
			if strings.Contains(out.String(), "=== RUN") {
				t.Fatalf("noise:\n%s", out.String())
			}
			if strings.HasPrefix(c.want, "FAILED") && !strings.HasSuffix(out.String(), c.want) {
				t.Fatalf("not at the end:\n%s", out.String())
			}
		})
	}
}

// TestEndedByNewer: a package that ends early while only tests with a PyTorch that appeared later are running has to pass without it.
func TestEndedByNewer(t *testing.T) {
	t.Parallel()
	running := func(names ...string) string {
		var in strings.Builder
		for _, name := range names {
			fmt.Fprintf(&in, `{"Action":"run","Package":"r","Test":"%s"}`+"\n", name)
		}
		return newer + in.String() + `{"Action":"fail","Package":"r"}` + "\n"
	}
	for _, c := range []struct {
		name, in   string
		passes, ok bool
		ran        int
	}{
		{"newer", running("TestD", "TestD/torch-newest", "TestD/torch-newest/x"), true, true, 1},
		{"fails without it", running("TestD", "TestD/torch-newest"), false, false, 1},
		{"another too", running("TestD", "TestD/torch-newest", "TestD/torch-2.6"), true, false, 0},
		{"none", running("TestD"), true, false, 0},
		{"known", strings.Replace(running("TestD", "TestD/torch-newest"), "only reported", "installation", 1), true, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			ran := 0
			_, ok := report(strings.NewReader(c.in), &out, true, func(_ io.Writer, pkg, test string, _ int) bool {
				if pkg == "r" && test == "" {
					ran++
				}
				return c.passes && test == ""
			})
			if ok != c.ok || ran != c.ran || ok != strings.Contains(out.String(), "REPORTED r (ended while") {
				t.Errorf("ok = %v, %d runs, output:\n%s", ok, ran, out.String())
			}
		})
	}
}

// TestAgain: a test that failed and then passes every time is named as unstable; what cannot be chance fails at once.
func TestAgain(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range mostUnstable + 1 {
		fmt.Fprintf(&many, `{"Action":"fail","Package":"p","Test":"TestMany%d"}`+"\n", i)
	}
	race := `{"Action":"output","Package":"p","Test":"TestC","Output":"WARNING: DATA RACE\n"}` + "\n" +
		`{"Action":"fail","Package":"p","Test":"TestC"}` + "\n"
	for _, c := range []struct {
		name, in, want string
		passes         bool
		ran            string
		ok             bool
	}{
		{
			"passes alone", passing + subtests,
			"2 passed, 2 failed, 0 skipped, 1 UNSTABLE (failed, then passed again and again alone)\nUNSTABLE p TestC/x\n", true,
			"p TestC 5", true,
		},
		{
			"long", strings.Replace(subtests, `"Test":"TestC"}`, `"Test":"TestC","Elapsed":30}`, 1), "UNSTABLE p TestC/x\n", true,
			"p TestC 2", true,
		},
		{"fails alone", passing + subtests, "2 failed, 0 skipped\nFAILED p TestC/x\n", false, "p TestC 5", false},
		{"too many", many.String(), "FAILED p TestMany0", true, "", false},
		{"data race", race, "FAILED p TestC", true, "", false},
		{"crash", passing + subtests + crashing, "FAILED r (ended", true, "", false},
		{"nothing failed", passing, "1 passed, 0 failed, 0 skipped\n", true, "", true},
		{"skip forbidden", passing + skipping, "required was skipped", true, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			ran := ""
			_, ok := report(strings.NewReader(c.in), &out, true, func(_ io.Writer, pkg, test string, times int) bool {
				ran += pkg + " " + test + fmt.Sprint(" ", times)
				return c.passes
			})
			if ok != c.ok || ran != c.ran || !strings.Contains(out.String(), c.want) {
				t.Fatalf("ok = %v, ran %q, output:\n%s", ok, ran, out.String())
			}
		})
	}
}

// TestGoTest runs a real test again by a name that is unlike those of subtests.
func TestGoTest(t *testing.T) {
	t.Parallel()
	if !goTest([]string{"go", "test"})(t.Output(), ".", "TestReport", 2) {
		t.Error("a test that passes does not")
	}
	if goTest([]string{"go", "test", "-nosuchflag"})(io.Discard, ".", "TestReport", 2) {
		t.Error("a command that fails passes")
	}
}

// TestMachine: who watches the machine says how late a thread was woken at most, and what part of the processors' time
// was taken meanwhile. Counters of the kernel that have gone backwards say nothing.
func TestMachine(t *testing.T) {
	type counters struct{ stolen, total uint64 }
	const began = "a thread that slept was woken at most 251ms late"
	for _, c := range []struct {
		before, after counters
		want          string
	}{
		{counters{100, 1000}, counters{150, 1200}, began + "; the host took 25% of the processors' time"},
		{counters{0, 1000}, counters{0, 1200}, began + "; the host took 0% of the processors' time"},
		{counters{100, 1000}, counters{90, 1200}, began},
		{counters{100, 1000}, counters{150, 1020}, began},
		{counters{100, 1000}, counters{150, 900}, began},
		{counters{}, counters{}, began},
	} {
		late := []time.Duration{3 * time.Millisecond, 250_600 * time.Microsecond, 0}
		seen := make(chan struct{})
		ticks := []counters{c.before, c.after}
		m := watch(func(stop <-chan struct{}) (time.Duration, bool) {
			if len(late) == 0 {
				close(seen)
				<-stop
				return time.Hour, false
			}
			next := late[0]
			late = late[1:]
			return next, true
		}, func() (stolen, total uint64) {
			next := ticks[0]
			ticks = ticks[1:]
			return next.stolen, next.total
		})
		<-seen
		if text := m.end(); text != c.want {
			t.Errorf("%v, then %v: %q, want %q", c.before, c.after, text, c.want)
		}
	}
	if _, total := processorTicks(); runtime.GOOS == "linux" && total == 0 {
		t.Error("no processor time was counted")
	}
	stop := make(chan struct{})
	if late, ok := lateness(stop); late < 0 || !ok {
		t.Errorf("a nap ended %v late, %v", late, ok)
	}
	close(stop)
	for ok := true; ok; {
		_, ok = lateness(stop)
	}
}
