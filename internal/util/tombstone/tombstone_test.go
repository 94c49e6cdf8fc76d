// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tombstone

import "testing"

// The last ones are remembered, at least half of what may be, and never more than that.
func TestSet(t *testing.T) {
	for _, most := range []int{1, 2, 10, 100} {
		var s Set[int]
		for n := range 1000 {
			s.Add(n, most)
			s.Add(n, most)
			if held := len(s.young) + len(s.old); held > max(most, 2) {
				t.Fatalf("%d are held, of at most %d", held, most)
			}
			for back := range max(most/2, 1) {
				if n >= back && !s.Has(n-back) {
					t.Fatalf("of %d the one before %d was forgotten at %d", most, back, n)
				}
			}
			if s.Has(-n - 1) {
				t.Fatal("one that was never added")
			}
		}
		less := s.Clone()
		less.Forget(func(n int) bool { return n == 999 })
		if less.Has(999) || !s.Has(999) || most > 3 && !less.Has(998) {
			t.Error("another one was forgotten")
		}
		twin := s.Clone()
		twin.Add(-1, most)
		if s.Has(-1) || !twin.Has(-1) || !twin.Has(999) {
			t.Error("a copy and its original share what is added")
		}
	}
}
