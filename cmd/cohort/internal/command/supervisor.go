// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"path/filepath"
)

// SupervisorName is the hidden command that a launcher starts itself with: see package launch.
const SupervisorName = "supervisor"

// Supervisor is the command line of a launcher's supervisor process.
func Supervisor() []string { return []string{filepath.Base(os.Args[0]), SupervisorName} }
