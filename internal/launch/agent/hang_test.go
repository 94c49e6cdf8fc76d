// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"
	"testing"
)

// TestBehind: a question is asked before its answer is wanted.
func TestBehind(t *testing.T) {
	t.Parallel()
	var running sync.WaitGroup
	asked := make(chan struct{})
	answer := async(&running, func() int { close(asked); return 7 })
	<-asked
	if got := answer(); got != 7 {
		t.Errorf("%d", got)
	}
	running.Wait()
}
