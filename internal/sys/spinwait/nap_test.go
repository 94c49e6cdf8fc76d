// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"runtime"
	"testing"
)

// TestNapsLeaveOne: one of the GOMAXPROCS never naps, whatever their number.
func TestNapsLeaveOne(t *testing.T) {
	for _, procs := range []int{1, 2, 5} {
		before := runtime.GOMAXPROCS(procs)
		naps := 0
		for BeginRawSleep() {
			naps++
		}
		if naps != procs-1 {
			t.Errorf("%d of %d nap", naps, procs)
		}
		for range naps {
			EndNap()
		}
		if procs > 1 {
			if !BeginRawSleep() {
				t.Error("nobody may nap after all have ended")
			}
			EndNap()
		}
		runtime.GOMAXPROCS(before)
	}
}
