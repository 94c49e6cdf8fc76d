// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command testcount reads the output of `go test -json`, prints what a person wants to see of it (packages, failures,
// counts) and ends with one line of totals. With -noskip a skipped test counts as a failure: where interop is required,
// nothing may be left out silently.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
)

type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

type totals struct{ passed, failed, skipped int }

func main() {
	noskip := flag.Bool("noskip", false, "fail when a test was skipped")
	flag.Parse()
	ok := report(os.Stdin, os.Stdout, *noskip)
	if !ok {
		os.Exit(1)
	}
}

// report copies the essence of the events to w and tells whether everything passed.
func report(r io.Reader, w io.Writer, noskip bool) bool {
	var sum totals
	output := map[string][]string{} // of the tests that have not ended, by package and test
	skips := map[string]int{}
	counted := map[string]totals{}
	ok := true
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(w, lines.Text()) // build errors are not JSON
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "output":
			output[key] = append(output[key], e.Output)
			if _, count, found := strings.Cut(e.Output, "count: "); found { // tests that print what they covered
				fmt.Fprint(w, "  "+count)
			}
		case "pass", "fail", "skip":
			if e.Action == "fail" {
				ok = false
				fmt.Fprint(w, strings.Join(output[key], ""))
				if e.Test == "" { // a crash ends the tests that were running without a verdict of their own
					printUnfinished(w, output, e.Package)
				}
			}
			if e.Test == "" {
				c := counted[e.Package]
				if c != (totals{}) || e.Action == "fail" {
					fmt.Fprintf(w, "%-4s %s (%d passed, %d failed, %d skipped, %.1fs)\n", e.Action, e.Package, c.passed, c.failed, c.skipped, e.Elapsed)
				}
			} else {
				c := counted[e.Package]
				switch e.Action {
				case "pass":
					c.passed++
					sum.passed++
				case "fail":
					c.failed++
					sum.failed++
				case "skip":
					c.skipped++
					sum.skipped++
					skips[reason(output[key])]++
				}
				counted[e.Package] = c
			}
			delete(output, key)
		}
	}
	reasons := make([]string, 0, len(skips))
	for text := range skips {
		reasons = append(reasons, text)
	}
	sort.Strings(reasons)
	for _, text := range reasons {
		fmt.Fprintf(w, "skipped %d: %s\n", skips[text], text)
	}
	if noskip && sum.skipped > 0 {
		fmt.Fprintln(w, "a test that is required was skipped")
		ok = false
	}
	if sum.passed+sum.failed == 0 {
		fmt.Fprintln(w, "no test was run")
		ok = false
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped)
	return ok
}

// printUnfinished prints what the tests of a package said that had not ended.
func printUnfinished(w io.Writer, output map[string][]string, pkg string) {
	keys := make([]string, 0, len(output))
	for key := range output {
		if test, ours := strings.CutPrefix(key, pkg+" "); ours && test != "" {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	for _, key := range keys {
		fmt.Fprintf(w, "unfinished: %s\n%s", key, strings.Join(output[key], ""))
	}
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
