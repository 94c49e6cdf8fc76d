// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
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

// within reports whether a test is a subtest of another, or in a package.
func within(id, of testID) bool {
	return id.pkg == of.pkg && id.test != "" && (of.test == "" || strings.HasPrefix(id.test, of.test+"/"))
}
