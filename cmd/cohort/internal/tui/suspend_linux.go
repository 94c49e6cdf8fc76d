// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tui

import (
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stopTime is how long a process waits to be stopped.
const stopTime = time.Second

// Suspends lets the user stop the launcher (Ctrl-Z) and continue it: the shell has the terminal to itself meanwhile, and the view is
// drawn anew below what the shell has printed. Signals that the job handles are left to it. The function it returns ends that.
func Suspends(view *Live, job []syscall.Signal) (end func()) {
	wanted := func(s syscall.Signal) bool { return !slices.Contains(job, s) && !signal.Ignored(s) }
	stops, continues := make(chan os.Signal, 1), make(chan os.Signal, 1)
	if wanted(syscall.SIGTSTP) {
		signal.Notify(stops, syscall.SIGTSTP)
	}
	if wanted(syscall.SIGCONT) {
		signal.Notify(continues, syscall.SIGCONT)
	}
	quit := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-stops:
				view.Pause()
				stop(continues)
				view.Continue()
			case <-continues: // also after a stop that cannot be caught
				view.Continue()
			case <-quit:
				return
			}
		}
	})
	return func() {
		signal.Stop(stops)
		signal.Stop(continues)
		close(quit)
		ended.Wait()
	}
}

// stop does what SIGTSTP does to a process that does not catch it. The Go runtime keeps its handler once it has one, so the system is
// asked for its own action. It does not stop a process without a job-control shell, which no user could continue.
func stop(continues <-chan os.Signal) {
	var system, ours [64]byte // the kernel's struct sigaction on any architecture; zeros are its own action
	const setSize = 8
	action := func(to, old *[64]byte) syscall.Errno {
		//nolint:gosec // two arrays that outlive the call
		_, _, err := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGTSTP), uintptr(unsafe.Pointer(to)),
			uintptr(unsafe.Pointer(old)), setSize, 0, 0) //nolint:gosec // as above
		return err
	}
	if action(&system, &ours) != 0 {
		return
	}
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGTSTP)
	select {
	case <-continues:
	case <-time.After(stopTime): // it was not stopped
	}
	_ = action(&ours, &system)
}

// InBackground reports whether a shell has put this process into the background of its terminal.
func InBackground(terminal *os.File) bool {
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group != syscall.Getpgrp()
}
