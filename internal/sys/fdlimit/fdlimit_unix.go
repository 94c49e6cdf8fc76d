// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fdlimit

import (
	"math"

	"golang.org/x/sys/unix"
)

func soft() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return unknown
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)) //nolint:unconvert // signed on some systems
}
