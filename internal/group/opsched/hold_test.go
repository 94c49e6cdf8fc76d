// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package opsched

import "testing"

// TestHold: a message that is held is not settled, and it is held by one.
func TestHold(t *testing.T) {
	m := New[int](4)
	var it Item[int]
	if it.Hold() {
		t.Error("held before it was posted")
	}
	if _, no := m.Post(&it); no != Accepted {
		t.Fatal(no)
	}
	if !it.Hold() || it.Hold() {
		t.Error("it is held by none or by two")
	}
	if mine, _ := m.Settle(&it); mine || len(m.Messages()) != 1 {
		t.Error("settled while it was held")
	}
	it.LetGo()
	if mine, _ := m.Settle(&it); !mine || it.Hold() {
		t.Error("not settled, or held afterwards")
	}
}
