// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package fdlimit

import "testing"

// TestShare: a share is a part of the limit within its bounds.
func TestShare(t *testing.T) {
	t.Parallel()
	limit := soft()
	if limit < 16 {
		t.Fatalf("a limit of %d", limit)
	}
	for _, c := range []struct{ part, low, high, want int }{
		{4, 1, limit, limit / 4},
		{1, limit + 7, limit + 9, limit + 7},
		{1, 1, 3, 3},
	} {
		if got := Share(c.part, c.low, c.high); got != c.want {
			t.Errorf("Share(%d, %d, %d) = %d, want %d", c.part, c.low, c.high, got, c.want)
		}
	}
}
