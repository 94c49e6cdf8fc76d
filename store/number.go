// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/cohort-dist/cohort/internal/storenum"

// AddNumber is the arithmetic of Add, for stores of one's own: it reads value as PyTorch does, by C++'s std::stoll, and
// returns the sum with delta and the text to store. Leading white space and a sign are allowed, what follows the digits is
// ignored, the sum wraps around at 64 bits. A value without a number, also an empty one, is [ErrNotANumber]; a key that
// does not exist counts as "0", which is the caller's decision.
func AddNumber(key string, value []byte, delta int64) (sum int64, text []byte, err error) {
	sum, err = storenum.Add(value, delta)
	if err != nil {
		return 0, nil, storenum.Error("store: add", key, value, err)
	}
	return sum, storenum.Format(sum), nil
}
