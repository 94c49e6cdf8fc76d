// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"os"

	"golang.org/x/sys/unix"
)

// tryFile opens a file in dir to which a write can be tried, and returns what removes it. It has no name, so that nothing is left of it
// even if the process is killed; a file system that has no such files gives it a name for a moment.
func tryFile(dir string) (*os.File, func(), error) {
	if f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_WRONLY, 0o600); err == nil { //nolint:gosec // the folder is this process's choice
		return f, func() {}, nil
	}
	f, err := os.CreateTemp(dir, "cohort_try_")
	if err == nil {
		_ = os.Remove(f.Name())
	}
	return f, func() {}, err
}
