// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"testing"
)

// TestHostsTakeTurns: hosts take turns, members keep their order, and who is gone is neither served nor kept.
func TestHostsTakeTurns(t *testing.T) {
	t.Parallel()
	gone := map[string]bool{}
	l := newFairQueue(func(s string) bool { return gone[s] })
	if _, found := l.First(); found || !l.Empty() {
		t.Fatal("a new line is not empty")
	}
	for i, m := range []string{"a1", "a2", "a3", "a4", "b1", "c1", "c2"} {
		l.Push(m, m[:1], false, int64(10+i))
	}
	l.Push("a0", "a", true, 20)
	if l.Since() != 10 || l.Len() != 8 {
		t.Errorf("since %d, %d wait", l.Since(), l.Len())
	}
	gone["b1"], gone["a2"] = true, true
	if work := l.Left("b") + l.Left("a"); work != 1 { // the only one of b is removed at once
		t.Errorf("%d units of work", work)
	}
	var served []string
	for m, found := l.First(); found; m, found = l.First() {
		served = append(served, m)
		l.Pop()
	}
	if want := []string{"a0", "c1", "a1", "c2", "a3", "a4"}; !slices.Equal(served, want) {
		t.Errorf("served %q, want %q", served, want)
	}
	if !l.Empty() || l.Len() != 0 || len(l.byName) != 0 {
		t.Errorf("%d are left", l.Len())
	}
}
