// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"runtime"
	"testing"
)

// TestRawSleepsLeaveOneProc: one of the GOMAXPROCS never sleeps so, whatever their number.
func TestRawSleepsLeaveOneProc(t *testing.T) {
	for _, procs := range []int{1, 2, 5} {
		before := runtime.GOMAXPROCS(procs)
		sleepers := 0
		for BeginRawSleep() {
			sleepers++
		}
		if sleepers != procs-1 {
			t.Errorf("%d of %d sleep", sleepers, procs)
		}
		for range sleepers {
			EndRawSleep()
		}
		if procs > 1 {
			if !BeginRawSleep() {
				t.Error("no raw sleep is allowed after all have ended")
			}
			EndRawSleep()
		}
		runtime.GOMAXPROCS(before)
	}
}
