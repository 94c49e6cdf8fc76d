// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Command returns the command line that starts the interpreter of this version, for tests that launch processes
// themselves.
func (tr *Torch) Command() []string { return slices.Clone(tr.command) }

// VNewest is the newest PyTorch that is installed below COHORT_TORCH_NEWEST (default /var/lib/torch-newest), if one is.
var VNewest = &Torch{
	Name: "newest", Root: envOr("COHORT_TORCH_NEWEST", "/var/lib/torch-newest"),
	command: []string{"chroot", envOr("COHORT_TORCH_NEWEST", "/var/lib/torch-newest"), "/usr/bin/python3"},
}

// EachAndNewest is [Each], and the newest version where it is installed.
func EachAndNewest(t *testing.T, test func(t *testing.T, torch *Torch)) {
	t.Helper()
	Each(t, test)
	t.Run("torch-newest", func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(VNewest.Root, "usr/bin/python3")); err != nil {
			t.Skipf("interop: the newest PyTorch: %v", err)
		}
		VNewest.Need(t)
		test(t, VNewest)
	})
}
