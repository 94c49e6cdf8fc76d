// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package invariants checks invariants in builds with the tag invariants, which "make race" uses. Without the tag a check
// costs nothing:
//
//	if invariants.Enabled {
//		invariants.Check(q.bytes >= 0, "queued bytes are never negative")
//	}
package invariants

// Check panics if what must be true is not.
func Check(ok bool, what string) {
	if Enabled && !ok {
		panic("invariant broken: " + what)
	}
}
