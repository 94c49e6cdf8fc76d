// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package testkit has the small helpers of tests: free ports, waiting for a condition, logs that can be read, ranks that run at once, disks
// that are soon full, host names with several addresses, programs of this module. It imports nothing of the module, so that every test
// can use it.
package testkit

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// limit is far more than anything takes, on a busy machine too: only what never happens reaches it.
const limit = 3 * time.Minute

// Until returns once ok does. It fails the test when what it waits for does not happen within three minutes.
func Until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) { //nolint:forbidigo // it polls
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// HeapBytes returns the bytes that can be reached.
func HeapBytes() int64 {
	for range 3 { // pools forget what was not used between two collections
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below 2^63
}

// waitingTests is how many tests run at once that wait most of the time.
const waitingTests = 4

// RunWaitingTests is for the TestMain of packages whose parallel tests wait for processes and timeouts most of the time: more of them than
// processors run at once, unless -parallel says otherwise.
func RunWaitingTests() {
	// It is called before the command line is read, which replaces the value. The flag exists in every test.
	_ = flag.Set("test.parallel", strconv.Itoa(max(waitingTests, runtime.GOMAXPROCS(0))))
}
