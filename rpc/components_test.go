// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConnectedComponents(t *testing.T) {
	t.Parallel()
	got := connectedComponents(map[int][]int{5: {1}, 1: {5, 5}, 2: nil, 3: {9}, 9: {4}, 4: nil, 7: {7}})
	if diff := cmp.Diff([][]int{{1, 5}, {2}, {3, 4, 9}, {7}}, got); diff != "" {
		t.Error(diff)
	}
	if none := connectedComponents(map[string][]string{}); none != nil {
		t.Errorf("islands of nothing: %v", none)
	}
}
