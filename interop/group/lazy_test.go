// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestLazyConnections has Go ranks among PyTorch ranks that connect at the first use of a pair, name themselves by their rank, or read
// the store in another way. A Go rank connects at once, which such ranks take; some pairs are not used before the end.
func TestLazyConnections(t *testing.T) {
	torchtest.Newest.Need(t)
	plan := []step{
		{Op: "broadcast", N: 5, DType: "float32", Root: 2},
		{Op: "ring", N: 3, DType: "float32"},
		{Op: "new_group", Name: "pair", Ranks: []int{1, 3}},
		{Op: "all_reduce", N: 70000, DType: "float64", Group: "pair"},
		{Op: "all_reduce", N: 1000, DType: "float32"},
		{Op: "gather", N: 3, DType: "int64", Root: 1},
		{Op: "all_to_all_single", N: 4, DType: "float32"},
		{Op: "barrier"},
	}
	want := world{size: 4}.run(t, torchtest.Newest, plan)
	for _, variable := range []string{"TORCH_GLOO_LAZY_INIT", "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER", "GLOO_ENABLE_STORE_V2_API"} {
		for _, goRanks := range [][]int{{0}, {1, 3}, {0, 1, 2}} {
			w := world{size: 4, goRanks: goRanks, env: map[string]string{variable: "1"}, untold: true}
			t.Run(fmt.Sprint(variable, " ", w), func(t *testing.T) { compare(t, plan, want, w.run(t, torchtest.Newest, plan)) })
		}
	}
}
