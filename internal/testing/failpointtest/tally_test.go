// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package failpointtest

import (
	"sync"
	"testing"
)

// A tally is waited for while it goes up from zero again and again.
func TestTally(t *testing.T) {
	var under tally
	<-under.none()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 1000 {
				under.begin()
				under.end()
			}
		})
		all.Go(func() {
			for range 1000 {
				<-under.none()
			}
		})
	}
	all.Wait()
	under.begin()
	select {
	case <-under.none():
		t.Error("something is under way")
	default:
	}
	under.end()
	<-under.none()
}
