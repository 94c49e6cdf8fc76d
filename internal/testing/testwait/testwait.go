// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package testwait waits in tests for what nothing announces.
package testwait

import (
	"testing"
	"time"
)

// limit is far more than anything takes, on a busy machine too: only what never happens reaches it.
const limit = 3 * time.Minute

// Until returns once ok does. It fails the test when what it waits for does not happen within three minutes.
func Until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) { //nolint:forbidigo // nothing tells
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", limit, what)
		}
	}
}
