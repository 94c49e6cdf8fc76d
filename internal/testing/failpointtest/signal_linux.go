// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// signalSelf kills or stops this process, at once: a signal to the process might be taken by another thread, and this one would go on
// for a while.
func signalSelf(stop bool) {
	signal := unix.SIGKILL
	if stop {
		signal = unix.SIGSTOP
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), signal)
}

// resume lets a process go on that is stopped.
func resume(p *os.Process) { _ = p.Signal(unix.SIGCONT) }
