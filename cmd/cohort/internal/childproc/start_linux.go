// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Start starts cmd so that it cannot outlive this process: in its own group, which is killed as a whole when
// the context of cmd ends, and killed by the kernel when this process dies. release is called after Wait.
func Start(cmd *exec.Cmd) (release func(), err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// The kernel acts when the thread that started the process ends, so that thread is kept.
	done, started, ended := make(chan struct{}), make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			<-done
		}
	}()
	if err := <-started; err != nil {
		<-ended
		return nil, err
	}
	return func() {
		close(done)
		<-ended
	}, nil
}
