// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package signame

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// number returns the signal of a name, 0 if there is none.
func number(name string) syscall.Signal { return unix.SignalNum(name) }
