// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command testcount reads the output of `go test -json` and prints what a person wants to see of it: packages, failures,
// counts, one line of totals, the names of what failed, and how well the machine ran. With -noskip a skipped test counts as
// a failure, so that nothing is silently left out where interop is required. With -cover it also says how much of the code
// the tests reach.
//
// With a command after the flags (testcount -as race -- go test -race), if only a few tests fail, that command reruns each of them
// alone several times: see again.go.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

type totals struct{ passed, failed, skipped, unstable int }

func (n totals) String() string {
	text := fmt.Sprintf("%d passed, %d failed, %d skipped", n.passed, n.failed, n.skipped)
	if n.unstable > 0 {
		text += fmt.Sprintf(", %d UNSTABLE (failed, then passed again and again alone)", n.unstable)
	}
	return text
}

func main() {
	noskip := flag.Bool("noskip", false, "fail when a test was skipped")
	log := flag.String("log", "", "also append the line of totals to this file, with the name that -as gives it")
	as := flag.String("as", "tests", "the name in that file")
	cover := flag.String("cover", "", "also print what this coverage profile says, once the tests have ended")
	flag.Parse()
	var run runner
	if flag.NArg() > 0 {
		run = goTest(flag.Args())
	}
	m := watchMachine()
	sum, ok := report(os.Stdin, os.Stdout, *noskip, run)
	fmt.Println("machine:", m.end())
	err := note(*log, *as, sum.String())
	if *cover != "" {
		total, few, coverErr := coverageOf(*cover)
		if coverErr == nil {
			fmt.Println("coverage:", total)
			fmt.Printf("less than %d%% of these, many of which others' tests reach: %s\n", fewCovered, few)
			coverErr = note(*log, "coverage", total)
		}
		err = errors.Join(err, coverErr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// note appends a line to the file of totals, if there is one.
func note(name, title, text string) error {
	if name == "" {
		return nil
	}
	return appendLine(name, fmt.Sprintf("%-8s %s\n", title, text))
}

func appendLine(name, line string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // the name is an argument
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// counter is what was read up to now.
type counter struct {
	w       io.Writer
	sum     totals
	counted map[string]totals
	output  map[testID][]string // of the tests that have not ended
	running map[testID]bool     // false while a parallel test waits for its turn
	skips   map[string]int      // by reason
	cannot  int                 // skipped because a build of PyTorch lacks what they need
	failed  []testID            // tests, and packages that failed by themselves
	why     map[testID]string
	raced   map[testID]bool // the race detector spoke up in them
	took    map[testID]float64
	newer   []string            // installations of PyTorch whose failures are only reported
	uses    map[testID][]string // installations that tests said they use
	// unfinished are the tests that were running when a package ended early.
	unfinished map[testID][]string
}

// testID is a test, or with an empty name a package.
type testID struct{ pkg, test string }

func (id testID) String() string { return strings.TrimSpace(id.pkg + " " + id.test) }

// report copies the essence of the events to w and tells whether everything passed. The names of what failed come last,
// where a person looks first. Without a runner no test is run again.
func report(r io.Reader, w io.Writer, noskip bool, run runner) (sum totals, ok bool) {
	c := counter{
		w: w, counted: map[string]totals{}, output: map[testID][]string{}, running: map[testID]bool{},
		skips: map[string]int{}, why: map[testID]string{}, raced: map[testID]bool{}, took: map[testID]float64{},
		uses: map[testID][]string{}, unfinished: map[testID][]string{},
	}
	ok = true
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if text := strings.TrimSuffix(line, "\n"); text != "" {
			var e event
			if json.Unmarshal([]byte(text), &e) != nil {
				fmt.Fprintln(w, text) // what the go command itself has to say is not JSON
			} else {
				c.take(e)
			}
		}
		if err != nil {
			break
		}
	}
	for _, text := range slices.Sorted(maps.Keys(c.skips)) {
		fmt.Fprintf(w, "skipped %d: %s\n", c.skips[text], text)
	}
	if noskip && c.sum.skipped > c.cannot {
		fmt.Fprintln(w, "a test that is required was skipped")
		ok = false
	}
	if c.sum.passed+c.sum.failed == 0 {
		fmt.Fprintln(w, "no test was run")
		ok = false
	}
	excused := slices.DeleteFunc(slices.Clone(c.failed), func(id testID) bool { return !c.excused(id) })
	for _, id := range excused {
		if !c.hasFailedBelow(id) {
			fmt.Fprintf(w, "REPORTED %s (with a PyTorch that is newer than what is known)\n", id)
		}
	}
	c.failed = slices.DeleteFunc(c.failed, func(id testID) bool { return slices.Contains(excused, id) })
	c.endedByNewer(run)
	verdict := "FAILED"
	failed := len(c.failed) > 0
	if failed && run != nil {
		if unstable, passed := c.again(run); passed {
			verdict, failed = "UNSTABLE", false
			c.sum.unstable = len(unstable)
		}
	}
	fmt.Fprintln(w, c.sum)
	for _, id := range c.failed {
		if c.hasFailedBelow(id) {
			continue // the names of its subtests say more
		}
		fmt.Fprintf(w, "%s %s%s\n", verdict, id, c.why[id])
	}
	return c.sum, ok && !failed
}

func (c *counter) take(e event) {
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "run", "cont", "pause":
		c.running[id] = e.Action != "pause"
	case "build-output":
		fmt.Fprint(c.w, e.Output)
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") { // progress of the test runner
			c.output[id] = append(c.output[id], e.Output)
		}
		if strings.Contains(e.Output, "DATA RACE") {
			c.raced[id] = true
		}
		c.noteNewer(id, e.Output)
		if _, count, found := strings.Cut(e.Output, "count: "); found { // tests that print what they covered
			fmt.Fprint(c.w, "  "+count)
		}
	case "pass", "fail", "skip":
		if e.Action == "fail" {
			c.failed = append(c.failed, id)
			c.took[id] = e.Elapsed
			fmt.Fprint(c.w, strings.Join(c.output[id], ""))
		}
		if e.Test == "" {
			c.endPackage(id, e)
		} else {
			c.endTest(id, e.Action)
		}
		delete(c.output, id)
		delete(c.running, id)
	}
}

func (c *counter) endTest(id testID, action string) {
	n := c.counted[id.pkg]
	switch action {
	case "pass":
		n.passed++
		c.sum.passed++
	case "fail":
		n.failed++
		c.sum.failed++
	case "skip":
		n.skipped++
		c.sum.skipped++
		why := reason(c.output[id])
		c.skips[why]++
		// As package torchtest says it, or a test that needs what few machines allow: nothing is missing here.
		if strings.Contains(why, "this build cannot") || strings.Contains(why, "this machine cannot") {
			c.cannot++
		}
	}
	c.counted[id.pkg] = n
}

func (c *counter) endPackage(id testID, e event) {
	n := c.counted[id.pkg]
	if e.Action == "fail" {
		switch running := c.printUnfinished(id.pkg); {
		case e.FailedBuild != "":
			c.why[id] = " (did not build)"
		case len(running) > 0: // a crash ends the tests that were running without a verdict of their own
			c.why[id] = " (ended while these were running: " + strings.Join(running, ", ") + ")"
			c.unfinished[id] = running
		case n.failed == 0:
			c.why[id] = " (no test failed, but the package did: see above)"
		}
	}
	if n != (totals{}) || e.Action == "fail" {
		fmt.Fprintf(c.w, "%-4s %s (%s, %.1fs)\n", e.Action, e.Package, n, e.Elapsed)
	}
}

// hasFailedBelow reports whether something within id failed: a subtest of a test, or a test of a package that has
// nothing to say itself.
func (c *counter) hasFailedBelow(id testID) bool {
	if c.why[id] != "" {
		return false
	}
	return slices.ContainsFunc(c.failed, func(other testID) bool {
		if id.test == "" {
			return other.pkg == id.pkg && other.test != ""
		}
		return other.pkg == id.pkg && strings.HasPrefix(other.test, id.test+"/")
	})
}

// printUnfinished prints what the tests of a package said that had not ended, and returns the names of those that ran.
func (c *counter) printUnfinished(pkg string) []string {
	var names []string
	for id, running := range c.running {
		if id.pkg == pkg && running {
			names = append(names, id.test)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(c.w, "unfinished: %s %s\n%s", pkg, name, strings.Join(c.output[testID{pkg, name}], ""))
	}
	return names
}

// reason finds the text that the test gave to t.Skip.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		if _, text, found := strings.Cut(line, ".go:"); found {
			if _, text, found = strings.Cut(text, ": "); found {
				return text
			}
		}
		return line
	}
	return "no reason given"
}
