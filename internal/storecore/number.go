// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import "math"

// parseNumber reads a decimal number as C's strtoll does, which is what PyTorch's ADD uses: white space and a sign may
// come first, anything that is not a digit ends the number. It reports false when there is no digit or the number does
// not fit.
func parseNumber(b []byte) (int64, bool) {
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] >= '\t' && b[i] <= '\r') {
		i++
	}
	negative := false
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		negative = b[i] == '-'
		i++
	}
	limit := uint64(math.MaxInt64)
	if negative {
		limit++
	}
	start, n := i, uint64(0)
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		digit := uint64(b[i] - '0')
		if n > (limit-digit)/10 {
			return 0, false
		}
		n = n*10 + digit
	}
	if i == start {
		return 0, false
	}
	if negative {
		return int64(-n), true //nolint:gosec // two's complement; the smallest number included
	}
	return int64(n), true
}
