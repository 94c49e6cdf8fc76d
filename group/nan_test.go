// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// TestMinMaxWithNaN: whether NaN or a number comes out where a rank has NaN depends on the transport, but all ranks get the same, and it is
// what one of them had. Where no rank has NaN it is the least or the greatest.
func TestMinMaxWithNaN(t *testing.T) {
	for _, transport := range transports {
		for _, size := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s,ranks=%d", transport, size), func(t *testing.T) {
				groups := newWorld(t, size, WithTransport(transport))
				for _, n := range []int{7, 50_000} {
					minMaxWithNaN(t, groups, Min, n)
					minMaxWithNaN(t, groups, Max, n)
				}
			})
		}
	}
}

func minMaxWithNaN(t *testing.T, groups []*Group, op ReduceOp, n int) {
	t.Helper()
	ctx := ctxOf(t)
	ins, outs := make([][]float32, len(groups)), make([][]float32, len(groups))
	for r := range ins {
		for i := range n {
			v := float32((i*7919 + r*31) % 1009)
			if i%3 == 0 && (i/3+r)%len(groups) == 0 {
				v = float32(math.NaN())
			}
			ins[r] = append(ins[r], v)
		}
		outs[r] = slices.Clone(ins[r])
	}
	must(t, each(len(groups), func(r int) error { return AllReduceSlice(ctx, groups[r], outs[r], op) }))
	for i := range n {
		var had []uint32
		best := ins[0][i]
		for r := range ins {
			had = append(had, math.Float32bits(ins[r][i]))
			if op == Min { // NaN if one of them is
				best = min(best, ins[r][i])
			} else {
				best = max(best, ins[r][i])
			}
		}
		for r := range outs {
			got := math.Float32bits(outs[r][i])
			if got != math.Float32bits(outs[0][i]) || !slices.Contains(had, got) || !math.IsNaN(float64(best)) && outs[r][i] != best {
				t.Fatalf("%v of %v at %d of %d: rank %d has %v, rank 0 has %v", op, had, i, n, r, outs[r][i], outs[0][i])
			}
		}
	}
}
