// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package rundir

import "os"

// tryFile opens a file in dir to which a write can be tried, and returns what removes it once it is closed.
func tryFile(dir string) (*os.File, func(), error) {
	f, err := os.CreateTemp(dir, "cohort_try_")
	return f, func() { _ = os.Remove(f.Name()) }, err
}
