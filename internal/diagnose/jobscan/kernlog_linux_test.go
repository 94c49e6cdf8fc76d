// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRecords: records that were overwritten are left out, and a log that is overwritten faster than it is read comes to an end.
func TestRecords(t *testing.T) {
	t.Parallel()
	answers := []string{"a", "", "b"}
	got := logRecords(func(buf []byte) (int, error) {
		if len(answers) == 0 {
			return 0, unix.EAGAIN
		}
		answer := answers[0]
		if answers = answers[1:]; answer == "" {
			return 0, unix.EPIPE
		}
		return copy(buf, answer), nil
	})
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
	asked := 0
	if got := logRecords(func([]byte) (int, error) {
		if asked++; asked > 2*maxRecords {
			return 0, unix.EAGAIN
		}
		return 0, unix.EPIPE
	}); got != nil || asked != maxRecords {
		t.Errorf("%d records of %d", len(got), asked)
	}
}
