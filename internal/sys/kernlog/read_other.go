// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package kernlog

import "time"

// Read returns nothing: this system's log is not read.
func Read(string) []string { return nil }

// SinceBoot is not known here.
func SinceBoot() time.Duration { return 0 }
