// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package nodecoord

import "time"

// sinceBoot returns the time of day: the other clock stands still while the machine sleeps. Where it is set by more than a launcher may
// be silent, that counts as a sleep.
func sinceBoot() time.Duration { return time.Duration(time.Now().UnixNano()) }
