// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ranklist

import "testing"

func TestShort(t *testing.T) {
	t.Parallel()
	for want, ranks := range map[string][]int{
		"": nil, "3": {3}, "0,1": {0, 1}, "0-2": {0, 1, 2}, "0-7,9": {0, 1, 2, 3, 4, 5, 6, 7, 9}, "1,3,5,6": {1, 3, 5, 6},
		"0,1,4-6": {0, 1, 4, 5, 6},
	} {
		if got := Short(ranks); got != want {
			t.Errorf("Short(%v) is %q, want %q", ranks, got, want)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for want, ranks := range map[string][]int{"rank 3": {3}, "ranks 0 and 1": {0, 1}, "ranks 1, 2 and 5": {1, 2, 5}} {
		if got := Words(ranks); got != want {
			t.Errorf("Words(%v) is %q, want %q", ranks, got, want)
		}
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	for want, ranks := range map[string][]int{"rank 3": {3}, "ranks 0,1": {0, 1}, "ranks 0-2,5": {0, 1, 2, 5}} {
		if got := Named(ranks); got != want {
			t.Errorf("Named(%v) is %q, want %q", ranks, got, want)
		}
	}
}
