// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && !amd64

package shm

import "sync/atomic"

// spinUntil reads *word up to turns times until it has reached target (in wrap-around order), and reports whether it has.
func spinUntil(word *uint32, target uint32, turns int) bool {
	for range turns * 16 { // without a pause instruction a turn is shorter
		if reached(atomic.LoadUint32(word), target) {
			return true
		}
	}
	return false
}
