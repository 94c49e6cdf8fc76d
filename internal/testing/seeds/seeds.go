// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package seeds gives simulations the seeds to run: as many as CI has time for, or a range that "make soak" names.
package seeds

import (
	"flag"
	"iter"
)

var (
	first = flag.Uint64("seeds.first", 0, "the first seed of every simulation")
	count = flag.Int("seeds.count", 0, "how many seeds every simulation runs; 0: as many as it runs in CI")
)

// Range returns the seeds of a simulation that runs n of them in CI, behind those that are known to find what few others do.
func Range(n int, known ...uint64) iter.Seq[uint64] {
	if *count > 0 {
		n = *count
	}
	from := *first
	return func(yield func(uint64) bool) {
		for _, seed := range known {
			if !yield(seed) {
				return
			}
		}
		for i := range uint64(n) { //nolint:gosec // a count
			if !yield(from + i) {
				return
			}
		}
	}
}
