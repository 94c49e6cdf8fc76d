// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchcaps

import (
	"fmt"
	"testing"
)

// TestMeshOrder holds the order in which groups are made against what init_device_mesh of 2.6 and 2.14 did in a world of 24.
func TestMeshOrder(t *testing.T) {
	rows := func(order meshOrder, sizes ...int) string { return fmt.Sprint(order.Rows(sizes)) }
	const b, c = "[[0 4 8] [1 5 9] [2 6 10] [3 7 11] [12 16 20] [13 17 21] [14 18 22] [15 19 23]]", "[[0 1 2 3] [4 5 6 7] [8 9 10 11] [12 13 14 15] [16 17 18 19] [20 21 22 23]]"
	for _, x := range []struct{ got, want string }{
		{rows(LastFirst, 2, 3, 4), "[[[0 12] [4 16] [8 20] [1 13] [5 17] [9 21] [2 14] [6 18] [10 22] [3 15] [7 19] [11 23]] " + b + " " + c + "]"},
		{rows(FirstFirst, 2, 3, 4), "[[[0 12] [1 13] [2 14] [3 15] [4 16] [5 17] [6 18] [7 19] [8 20] [9 21] [10 22] [11 23]] " + b + " " + c + "]"},
		{rows(LastFirst, 24), "[[]]"}, // the world's own group
		{rows(FirstFirst, 24), "[[]]"},
		{rows(FirstFirst, 24, 1)[:3], "[[]"},
		{rows(LastFirst, 24, 1)[:6], "[[[0 1"},
	} {
		if x.got != x.want {
			t.Errorf("%s, want %s", x.got, x.want)
		}
	}
}
