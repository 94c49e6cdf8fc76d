// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package launch

import "syscall"

const (
	sigUSR1 = int(syscall.SIGUSR1)
	sigUSR2 = int(syscall.SIGUSR2)
	sigCONT = int(syscall.SIGCONT)
	sigTSTP = int(syscall.SIGTSTP)
)
