// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import (
	"slices"
	"testing"
)

// Command returns the command line that starts the interpreter of this version, for tests that launch processes
// themselves.
func (tr *Torch) Command() []string { return slices.Clone(tr.command) }

// EachAndNewest is [Each], and the newest version.
func EachAndNewest(t *testing.T, test func(t *testing.T, torch *Torch)) {
	t.Helper()
	runOn(t, []*Torch{V113, V26, Newest}, test)
}
