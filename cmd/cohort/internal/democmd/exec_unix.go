// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package democmd

import (
	"os"
	"strconv"
	"syscall"
)

// becomePython replaces this process by a script.
func becomePython(python, script string) error {
	//nolint:gosec // the user's own Python
	return syscall.Exec(python, []string{python, "-u", script, strconv.Itoa(fitSteps)}, os.Environ())
}
