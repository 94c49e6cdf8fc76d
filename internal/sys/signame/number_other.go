// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package signame

import "syscall"

// number returns the signal of a name, 0 if there is none.
func number(name string) syscall.Signal {
	return map[string]syscall.Signal{
		"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP,
		"SIGQUIT": syscall.SIGQUIT,
	}[name]
}
