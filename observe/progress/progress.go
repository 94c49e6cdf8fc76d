// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package progress says what this rank is doing, in the program's own words, and "cohort why" and "cohort ps" show it:
// they name the section that a rank is in, since when, and its step. Nothing is sent: the rank writes into a page of
// its memory, less than a microsecond each time, and cohort reads it. In Python cohort_dist.why does the same. On
// systems other than Linux the functions do nothing.
//
// Sections follow goroutines, not threads: each one that has begun and not ended is shown, 15 at most, and "cohort why"
// names the one that was begun last. All functions may be called at any time by several goroutines.
package progress

import (
	"sync"

	"github.com/cohort-dist/cohort/internal/observe/progresspage"
)

// writer is the page of this process.
var writer progresspage.Writer

// Step says that this rank has done one more step.
func Step() { writer.Step() }

// StepTo says that this rank has done this many steps, such as those of a checkpoint that it continues.
func StepTo(steps uint64) { writer.StepTo(steps) }

// Section says that this rank is in a part of the program now, until end is called, more than once if need be. A name longer than 56 bytes
// is cut.
func Section(name string) (end func()) {
	place := writer.Begin(name)
	return sync.OnceFunc(func() { writer.End(place) })
}
