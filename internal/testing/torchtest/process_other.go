// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package torchtest

import (
	"os"
	"os/exec"
	"syscall"
)

// dieWithParent does nothing here: the command ends when its standard input does.
func dieWithParent(*exec.Cmd) {}

func signal(pid int, sig syscall.Signal) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Signal(sig)
	}
}
