// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package jobscan

import "time"

// ReadKernelLog returns nothing: this system's log is not read.
func ReadKernelLog(string) []string { return nil }

// sinceBoot is not known here.
func sinceBoot() time.Duration { return 0 }
