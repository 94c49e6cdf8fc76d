// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package joblog

import (
	"os"

	"golang.org/x/sys/unix"
)

// pipeSize lets a worker that prints a lot run ahead of the launcher.
const pipeSize = 256 << 10

// widen makes a pipe larger. Where the user's limit for pipes is reached, it stays as it is.
func widen(f *os.File) { _, _ = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, pipeSize) }
