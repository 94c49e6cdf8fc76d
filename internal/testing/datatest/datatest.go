// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package datatest runs tests whose cases are data. A file in testdata holds them in a form that one can read: the evidence, and what is
// made of it. A run with -update writes what is made of it today; the difference is for a reader to judge.
//
//	Lines before the first case explain the file.
//
//	=== the name of the case
//	the input
//	----
//	the output
//
// Blank lines around the input and the output do not count. [Read] reads an input of lines into a value.
package datatest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the outputs of the cases in testdata anew")

// Updates reports whether the run has -update, for tests with golden files of another form.
func Updates() bool { return *update }

// A testCase is one case of a file.
type testCase struct{ name, input, want string }

const header, separator = "=== ", "----"

// Run runs the cases of a file in testdata, each as a subtest: run returns the output of an input.
func Run(t *testing.T, name string, run func(t *testing.T, input string) string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	text, err := os.ReadFile(name) //nolint:gosec // a file of the test
	if err != nil {
		t.Fatal(err)
	}
	about, cases := parse(string(text))
	if len(cases) == 0 {
		t.Fatalf("%s has no cases", name)
	}
	seen := map[string]bool{}
	for i := range cases {
		c := &cases[i]
		if seen[c.name] {
			t.Errorf("%s has two cases %q", name, c.name)
		}
		seen[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			got := strings.Trim(run(t, c.input), "\n")
			if got != c.want && !*update {
				t.Errorf("\n got %s\nwant %s\nif that is right: go test -run %s -update", got, c.want, t.Name())
			}
			if *update {
				c.want = got
			}
		})
	}
	if *update {
		if err := os.WriteFile(name, []byte(format(about, cases)), 0o644); err != nil { //nolint:gosec // as the files beside it
			t.Error(err)
		}
	}
}

// parse splits a file into the lines before the first case, and the cases.
func parse(text string) (about string, cases []testCase) {
	about, text, _ = strings.Cut("\n"+text, "\n"+header)
	if text == "" {
		return about, nil
	}
	for part := range strings.SplitSeq(text, "\n"+header) {
		name, rest, _ := strings.Cut(part, "\n")
		input, want, _ := strings.Cut("\n"+rest, "\n"+separator+"\n")
		cases = append(cases, testCase{name, strings.Trim(input, "\n"), strings.Trim(want, "\n")})
	}
	return about, cases
}

// format is the opposite of parse.
func format(about string, cases []testCase) string {
	var b strings.Builder
	b.WriteString(strings.Trim(about, "\n") + "\n")
	for _, c := range cases {
		b.WriteString("\n" + header + c.name + "\n")
		if c.input != "" {
			b.WriteString(c.input + "\n")
		}
		b.WriteString(separator + "\n" + c.want + "\n")
	}
	return b.String()
}
