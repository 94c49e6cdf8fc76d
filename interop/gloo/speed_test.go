// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/internal/torchtest"
)

// BenchmarkMixedWorld compares all_reduce in a world of three PyTorch ranks with one of two PyTorch ranks and a Go rank,
// as a PyTorch rank sees it, in interleaved repetitions:
//
//	COHORT_INTEROP=auto go test ./interop/gloo -run xxx -bench MixedWorld -benchtime 7x
func BenchmarkMixedWorld(b *testing.B) {
	for _, tr := range []*torchtest.Torch{torchtest.V113, torchtest.V26} {
		for _, c := range []struct {
			name     string
			n, count int
		}{{"1KiB", 256, 300}, {"1MiB", 256 << 10, 40}, {"16MiB", 4 << 20, 6}} {
			b.Run(fmt.Sprintf("torch-%s/%s", tr.Name, c.name), func(b *testing.B) {
				tr.Need(b)
				plan := []step{{Op: "barrier"}, {Op: "bench", N: c.n, Count: c.count / 3}, {Op: "bench", N: c.n, Count: c.count}}
				var torch, mixed []float64
				for range b.N {
					torch = append(torch, measure(b, world(b, tr, 3, nil, plan, limit, nil, nil)))
					mixed = append(mixed, measure(b, world(b, tr, 3, []int{2}, plan, limit, nil, nil)))
				}
				slices.Sort(torch)
				slices.Sort(mixed)
				b.ReportMetric(torch[len(torch)/2], "torch-us")
				b.ReportMetric(mixed[len(mixed)/2], "mixed-us")
				b.ReportMetric(mixed[len(mixed)/2]/torch[len(torch)/2], "ratio")
			})
		}
	}
}

// measure returns the mean time of one all_reduce that rank 0 saw.
func measure(b *testing.B, results [][]string) float64 {
	b.Helper()
	var median, mean float64
	if _, err := fmt.Sscan(results[0][2], &median, &mean); err != nil {
		b.Fatal(err)
	}
	return mean
}
