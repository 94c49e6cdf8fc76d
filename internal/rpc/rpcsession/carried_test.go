// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import "testing"

// TestCarriedIsBounded: what may have been swallowed by a link is remembered for a while, and not without bound.
func TestCarriedIsBounded(t *testing.T) {
	c := &Conn{}
	for range maxCarried + 1000 {
		c.Carry(nil)
	}
	if n := len(c.mu.carried); n > maxCarried {
		t.Errorf("%d answers are remembered", n)
	}
}
