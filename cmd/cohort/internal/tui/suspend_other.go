// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tui

import (
	"os"
	"syscall"
)

// Suspends does nothing here: the system's own action stops the launcher.
func Suspends(*Live, []syscall.Signal) (end func()) { return func() {} }

// InBackground is not known here.
func InBackground(*os.File) bool { return false }
