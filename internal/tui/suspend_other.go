// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cli

import (
	"os"
	"syscall"

	"github.com/cohort-dist/cohort/internal/tui"
)

// suspends does nothing here: the system's own action stops the launcher.
func suspends(*tui.Live, []syscall.Signal) (end func()) { return func() {} }

func inBackground(*os.File) bool { return false }
