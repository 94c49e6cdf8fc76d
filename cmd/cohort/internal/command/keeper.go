// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"path/filepath"
)

// KeeperName is the hidden command that a launcher starts itself with: see package keeper.
const KeeperName = "keeper"

// Keeper is the command line of a launcher's keeper.
func Keeper() []string { return []string{filepath.Base(os.Args[0]), KeeperName} }
