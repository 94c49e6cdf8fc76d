// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/cohort-dist/cohort/internal/store/storeop"

// AddNumber is the arithmetic of Add, for custom stores. It reads value as PyTorch does, with C++'s std::stoll, and
// returns its sum with delta and the text to store. Leading white space and a sign are allowed, anything after the digits
// is ignored, and the sum wraps around at 64 bits. A value without a number, including an empty one, gives
// [ErrNotANumber]; for a key that does not exist, pass "0".
func AddNumber(key string, value []byte, delta int64) (sum int64, text []byte, err error) {
	sum, err = storeop.AddCounter(value, delta)
	if err != nil {
		return 0, nil, storeop.CounterError("store: add", key, value, err)
	}
	return sum, storeop.FormatCounter(sum), nil
}
