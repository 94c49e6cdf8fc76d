// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package seeds

import (
	"slices"
	"testing"
)

func TestRange(t *testing.T) {
	if got := slices.Collect(Range(3, 99)); !slices.Equal(got, []uint64{99, 0, 1, 2}) {
		t.Errorf("%v", got)
	}
	*first, *count = 7, 2
	t.Cleanup(func() { *first, *count = 0, 0 })
	if got := slices.Collect(Range(3)); !slices.Equal(got, []uint64{7, 8}) {
		t.Errorf("%v", got)
	}
	for range Range(3, 99) {
		break // a simulation may end early
	}
}
