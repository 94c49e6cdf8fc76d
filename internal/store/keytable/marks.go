// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package bitset has a set of small numbers in which the next one is found quickly.
package keytable

import (
	"math"
	"math/bits"
)

// Bitset is a set of small numbers in which the next one is found quickly, also where there are few of once many: a bit for
// each number, and a bit for each word of those that is not empty.
type Bitset struct{ low, high []uint64 }

// Add puts a number into the set.
func (s *Bitset) Add(n int) {
	for n>>6 >= len(s.low) {
		s.low = append(s.low, 0)
	}
	for n>>12 >= len(s.high) {
		s.high = append(s.high, 0)
	}
	s.low[n>>6] |= 1 << (n & 63)
	s.high[n>>12] |= 1 << (n >> 6 & 63)
}

// Remove takes a number out of the set that is in it.
func (s *Bitset) Remove(n int) {
	if s.low[n>>6] &^= 1 << (n & 63); s.low[n>>6] == 0 {
		s.high[n>>12] &^= 1 << (n >> 6 & 63)
	}
}

// Next returns the first number from n on that is in the set, or [None], and how many words it looked at.
func (s *Bitset) Next(n int) (found, looked int) {
	word := n >> 6
	if word >= len(s.low) {
		return NoBit, 1
	}
	if left := s.low[word] &^ (1<<(n&63) - 1); left != 0 {
		return word<<6 + bits.TrailingZeros64(left), 1
	}
	word++
	mask := ^uint64(0) << (word & 63)
	for h := word >> 6; h < len(s.high); h++ {
		looked++
		if left := s.high[h] & mask; left != 0 {
			word = h<<6 + bits.TrailingZeros64(left)
			return word<<6 + bits.TrailingZeros64(s.low[word]), looked + 1
		}
		mask = ^uint64(0)
	}
	return NoBit, looked + 1
}

// NoBit is more than any number in a set.
const NoBit = math.MaxInt
