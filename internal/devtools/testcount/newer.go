// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// A PyTorch that appeared after this code was written may behave in a way that the tests do not know. Package torchtest says so of an
// installation, with the words below, and then what fails with it is printed, but does not fail the run.
const (
	onlyReported = "count: only reported: torch-"
	usesTorch    = "interop: uses torch-"
)

// noteNewer keeps which installations are newer than what is known, and which tests use one that their names do not tell.
func (c *counter) noteNewer(id testID, output string) {
	if _, name, found := strings.Cut(output, onlyReported); found {
		c.newer = append(c.newer, firstWord(name))
	}
	if _, name, found := strings.Cut(output, usesTorch); found {
		c.uses[id] = append(c.uses[id], firstWord(name))
	}
}

func firstWord(s string) string {
	return strings.TrimRight(strings.FieldsFunc(s+" ", func(r rune) bool { return r == ' ' || r == '\n' })[0], ",:;")
}

// excused reports whether everything that failed in a test or a package failed with an installation that is newer than what is known.
func (c *counter) excused(id testID) bool {
	if c.why[id] != "" {
		return false
	}
	if c.hasFailedBelow(id) {
		return !slices.ContainsFunc(c.failed, func(other testID) bool { return other != id && within(other, id) && !c.excused(other) })
	}
	return c.withNewer(id)
}

// withNewer reports whether a test uses an installation that is newer than what is known.
func (c *counter) withNewer(id testID) bool {
	return slices.ContainsFunc(c.newer, func(name string) bool {
		if slices.ContainsFunc(strings.Split(id.test, "/"), func(part string) bool { return part == name || part == "torch-"+name }) {
			return true
		}
		for by, names := range c.uses { // said by the test itself, or by one around it
			if slices.Contains(names, name) && (by == id || within(id, by)) {
				return true
			}
		}
		return false
	})
}

// endedByNewer runs packages that ended early, while only tests with such an installation were running, once more
// without it: the other tests have to pass. It takes them out of what failed.
func (c *counter) endedByNewer(run runner) {
	c.failed = slices.DeleteFunc(c.failed, func(id testID) bool {
		running := c.unfinished[id]
		other := func(name string) bool {
			is := testID{id.pkg, name}
			parent := slices.ContainsFunc(running, func(below string) bool { return within(testID{id.pkg, below}, is) })
			return !parent && !c.withNewer(is)
		}
		if run == nil || len(running) == 0 || len(c.newer) == 0 || slices.ContainsFunc(running, other) || !run(c.w, id.pkg, "", 1) {
			return false
		}
		fmt.Fprintf(c.w, "REPORTED %s%s (with a PyTorch that is newer than what is known; the package passes without it)\n", id, c.why[id])
		return true
	})
}

// within reports whether a test is a subtest of another, or in a package.
func within(id, of testID) bool {
	return id.pkg == of.pkg && id.test != "" && (of.test == "" || strings.HasPrefix(id.test, of.test+"/"))
}
