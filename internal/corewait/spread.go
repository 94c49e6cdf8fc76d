// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package corewait

// Nowhere is the core of a rank that has not said where it runs.
const Nowhere = -1

// Spread tells a rank that shares its core with others of its group whether to go to another one, and to which. cores has
// the core of each rank, allowed the cores that this rank may use.
//
// A rank goes when the core it goes to has at least two ranks less, and of the ranks on one core only the last goes: so
// ranks that decide at the same time do not follow each other around. The kernel would do the same, but only at its next
// tick, and not at all as long as ranks wake each other.
func Spread(me int, cores []int, allowed []int) (core int, ok bool) {
	here := cores[me]
	if here == Nowhere {
		return 0, false
	}
	mine := 0
	for rank, c := range cores {
		if c == here {
			if rank > me {
				return 0, false
			}
			mine++
		}
	}
	best := mine
	for _, c := range allowed {
		n := 0
		for _, other := range cores {
			if other == c {
				n++
			}
		}
		if n < best {
			best, core = n, c
		}
	}
	return core, mine-best >= 2
}
