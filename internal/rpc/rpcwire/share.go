// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
)

// A value that is mentioned twice is sent once. Decoding makes one Go value of what a message mentions many times over, so
// sending such a value back must not write it many times: a few hundred bytes would become gigabytes. What is the same in Go
// (a slice, a map, a pointer, a long string) is the same at the receiver, as it is in Python.

// maxOutput bounds what an Encoder writes by default: the transports accept no longer payload.
const maxOutput = 1 << 30

// open stands for a value that is being encoded: an encoder that meets it again is inside it.
type open struct{}

func containsItself() error {
	return badValue("values nested deeper than %d, or one that contains itself", pyconv.MaxDepth)
}

func tooLong(most int) error {
	return cohort.Newf("rpc: encode value", cohort.TooLarge, "a value that takes more than %d bytes", most)
}

// most is the longest payload that the Encoder writes.
func (e *Encoder) most() int {
	if e.Most > 0 {
		return e.Most
	}
	return maxOutput
}
