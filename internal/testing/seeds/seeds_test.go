// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package seeds

import (
	"slices"
	"testing"
)

func TestRange(t *testing.T) {
	if got := slices.Collect(Range(3)); !slices.Equal(got, []uint64{0, 1, 2}) || Chosen() {
		t.Errorf("%v, chosen %v", got, Chosen())
	}
	*first, *count = 7, 2
	t.Cleanup(func() { *first, *count = 0, 0 })
	if got := slices.Collect(Range(3)); !slices.Equal(got, []uint64{7, 8}) || !Chosen() {
		t.Errorf("%v, chosen %v", got, Chosen())
	}
	for range Range(3) {
		break // a simulation may end early
	}
}
