// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeop

// This file is the arithmetic of a store's counters: decimal text, read as C's stoll reads it.
//
// PyTorch keeps counters as text and parses them with std::stoll, so leading white space and a sign are allowed, what
// follows the digits is ignored, and the sum wraps around. Every store of this module adds through here.

import (
	"errors"
	"math"
	"strconv"

	"github.com/cohort-dist/cohort"
)

// The reasons for which a value is not a number. Both carry [cohort.NotANumber].
var (
	errSyntax error = counterError("the value does not begin with a decimal number")
	errRange  error = counterError("the number does not fit into 64 bits")
)

type counterError string

func (r counterError) Error() string        { return string(r) }
func (r counterError) Is(target error) bool { return target == error(cohort.NotANumber) }

// ParseCounter reads value as std::stoll does. An empty value is errSyntax.
func ParseCounter(value []byte) (int64, error) {
	i := 0
	for i < len(value) && isSpace(value[i]) {
		i++
	}
	negative := false
	if i < len(value) && (value[i] == '+' || value[i] == '-') {
		negative = value[i] == '-'
		i++
	}
	start := i
	limit := uint64(math.MaxInt64)
	if negative {
		limit++
	}
	var n uint64
	for ; i < len(value) && value[i] >= '0' && value[i] <= '9'; i++ {
		digit := uint64(value[i] - '0')
		if n > (limit-digit)/10 {
			return 0, errRange
		}
		n = n*10 + digit
	}
	switch {
	case i == start:
		return 0, errSyntax
	case negative:
		return -int64(n), nil // at most 2^63, whose negation is itself in two's complement
	}
	return int64(n), nil
}

// AddCounter returns value plus delta, wrapping around at 64 bits.
func AddCounter(value []byte, delta int64) (int64, error) {
	n, err := ParseCounter(value)
	if err != nil {
		return 0, err
	}
	return n + delta, nil
}

// AddCounterEmptyIsZero is Add for the stores in which an empty value counts as 0: HashStore and FileStore, but not TCPStore.
func AddCounterEmptyIsZero(value []byte, delta int64) (int64, error) {
	if len(value) == 0 {
		return delta, nil
	}
	return AddCounter(value, delta)
}

// FormatCounter returns n as the text that a store keeps.
func FormatCounter(n int64) []byte { return strconv.AppendInt(nil, n, 10) }

// CounterError returns the error of an operation on a key whose value is not a number, with at most the first bytes of it.
func CounterError(op, key string, value []byte, err error) *cohort.Error {
	const shown = 32
	excerpt := value
	more := ""
	if len(excerpt) > shown {
		excerpt, more = excerpt[:shown], "..."
	}
	detail := err.Error()
	if errors.Is(err, cohort.NotANumber) {
		detail += ": " + strconv.Quote(string(excerpt)) + more
	}
	return &cohort.Error{Op: op, Code: cohort.NotANumber, Rank: cohort.NoRank, Key: key, Detail: detail, Err: err}
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }
