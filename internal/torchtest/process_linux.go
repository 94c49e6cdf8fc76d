// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the command when the thread that starts it ends.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

func signal(pid int, sig syscall.Signal) { _ = syscall.Kill(pid, sig) }
