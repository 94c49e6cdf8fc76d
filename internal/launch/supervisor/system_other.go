// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package supervisor

import (
	"errors"
	"syscall"
)

// rssUnit is the unit of Rusage.Maxrss.
const rssUnit = 1

// adopt does nothing: this system has no subreapers.
func adopt() {}

// keepFiles does nothing: without /proc the descriptors are not listed.
func keepFiles() {}

func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// onCPUs starts a process. This system cannot bind it to processors.
func onCPUs(cpus []int, start func() (int, error)) (int, error) {
	if len(cpus) > 0 {
		return 0, errors.New("this system cannot bind a process to processors")
	}
	return start()
}

// waitPeek asks whether there is a child.
func waitPeek() (int, error) { return 0, nil }

// descendants kills the process groups of the workers, which is all that can be found without /proc.
func descendants(int, map[int]int) []int { return nil }

// started finds nothing without /proc: the process groups of the workers have been killed.
func started(map[int]bool, []string) []int { return nil }
