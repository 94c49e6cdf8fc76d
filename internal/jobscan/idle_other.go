// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package jobscan

import "time"

// clocks are not known here.
type clocks struct{}

func (*clocks) idle(int, int) time.Duration { return 0 }
