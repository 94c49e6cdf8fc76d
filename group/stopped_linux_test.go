// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStoppedRankIsFound: the connections of a process that is stopped stay open, but it says nothing any more.
func TestStoppedRankIsFound(t *testing.T) {
	t.Parallel()
	groups, process, _ := withMortal(t, TCP, 2*time.Second)
	ctx := ctxOf(t)
	must(t, process.Signal(syscall.SIGSTOP))
	must(t, each(2, func(r int) error {
		err := groups[r].Barrier(ctx).Wait(ctx)
		if err == nil || !strings.Contains(err.Error(), "has sent nothing") {
			t.Errorf("%v", err)
		}
		return names2(err)
	}))
}
