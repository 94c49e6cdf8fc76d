// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package benchcmd

import (
	"syscall"
	"time"
)

// processCost is what the kernel counts for this process.
func processCost() cost {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return cost{}
	}
	//nolint:unconvert // the types differ between systems
	return cost{cpu: time.Duration(u.Utime.Nano() + u.Stime.Nano()), switches: int64(u.Nvcsw) + int64(u.Nivcsw)}
}
