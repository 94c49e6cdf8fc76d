// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package jobscan

import (
	"context"
	"time"
)

// clocks are not known here.
type clocks struct{}

func (*clocks) idle(int, int) time.Duration { return 0 }

// Idle returns how long a thread has not run; 0: not known.
func Idle(context.Context, int, int) time.Duration { return 0 }
