// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package testmem measures in tests how much memory the process uses.
package testmem

import "runtime"

// Heap returns the bytes that can be reached.
func Heap() int64 {
	for range 3 { // pools forget what was not used between two collections
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below 2^63
}
