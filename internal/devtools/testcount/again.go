// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

const (
	// passes is how often in a row a test that failed must pass when it is run again, and longPasses if it took longer than long.
	passes, longPasses = 5, 2
	long               = 20 // seconds
	// mostUnstable is how many tests of one run, of thousands, may be run again. On a machine that stood still for seconds four of
	// them failed once; many more are not chance.
	mostUnstable = 5
)

// runner runs one test of a package a number of times and reports whether it passed each time. Without a name it runs
// the package without the newest PyTorch.
type runner func(w io.Writer, pkg, test string, times int) bool

// goTest is a runner over a command such as "go test -race".
func goTest(command []string) runner {
	return func(w io.Writer, pkg, test string, times int) bool {
		args := append(slices.Clone(command[1:]), fmt.Sprint("-count=", times), "-failfast", "-run", "^"+regexp.QuoteMeta(test)+"$", pkg)
		cmd := exec.Command(command[0], args...) //nolint:gosec,noctx // the command is an argument of ours; go test has its own timeout
		if test == "" {
			cmd.Args[len(cmd.Args)-2] = "."
			cmd.Env = append(os.Environ(), "COHORT_INTEROP=auto", "COHORT_TORCH_NEWEST=/nonexistent")
		}
		cmd.Stdout, cmd.Stderr = w, os.Stderr
		return cmd.Run() == nil
	}
}

// again runs the tests that failed once more, each alone. One that then passes every time is unstable: it is named, so that
// it is fixed, but does not fail the run. What cannot be chance is not tried: a data race, a crash, a package that did not build.
func (c *counter) again(run runner) (unstable []testID, ok bool) {
	var tops []testID
	for _, id := range c.failed {
		if id.test == "" {
			if c.why[id] != "" {
				return nil, false
			}
			continue
		}
		if c.raced[id] {
			return nil, false
		}
		name, _, _ := strings.Cut(id.test, "/")
		if top := (testID{id.pkg, name}); !slices.Contains(tops, top) {
			tops = append(tops, top)
		}
	}
	if len(tops) == 0 || len(tops) > mostUnstable {
		return nil, false
	}
	for _, id := range tops {
		times := passes
		if c.took[id] > long {
			times = longPasses
		}
		fmt.Fprintf(c.w, "running %s again, %d times alone\n", id, times)
		if !run(c.w, id.pkg, id.test, times) {
			return nil, false
		}
	}
	return tops, true
}
