// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import "testing"

// TestTombs remembers the last forks, at least half of what it may, and never more.
func TestTombs(t *testing.T) {
	for _, most := range []int{1, 2, 10, 100} {
		var g tombs
		for n := range uint64(1000) {
			g.add(ID{On: 1, N: n}, most)
			g.add(ID{On: 1, N: n}, most)
			if held := len(g.young) + len(g.old); held > max(most, 2) {
				t.Fatalf("%d are held, of at most %d", held, most)
			}
			for back := range uint64(max(most/2, 1)) {
				if n >= back && !g.has(ID{On: 1, N: n - back}) {
					t.Fatalf("of %d the one before %d was forgotten at %d", most, back, n)
				}
			}
			if g.has(ID{On: 2, N: n}) {
				t.Fatal("a fork that was never deleted")
			}
		}
	}
}
