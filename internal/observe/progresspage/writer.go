// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package progresspage

import (
	"math/bits"
	"os"
	"sync"
	"time"
)

// Writer writes the page of this process. The zero value is ready; the page exists from the first call on. On a system that cannot make
// it, all methods do nothing.
type Writer struct {
	mu struct {
		sync.Mutex
		opened bool
		page   []byte // nil: there is none
		steps  uint64
		used   uint32 // places, a bit each
	}
}

// StepTo says that the rank has done this many steps.
func (w *Writer) StepTo(steps uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.openLocked() {
		w.mu.steps = steps
		putSteps(w.mu.page, steps, Now())
	}
}

// Step says that the rank has done one more step.
func (w *Writer) Step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.openLocked() {
		w.mu.steps++
		putSteps(w.mu.page, w.mu.steps, Now())
	}
}

// Begin says that the rank is in a section now, and returns its place; -1 if all are taken, which End accepts.
func (w *Writer) Begin(name string) (place int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	place = bits.TrailingZeros32(^w.mu.used)
	if !w.openLocked() || place >= Threads {
		return -1
	}
	w.mu.used |= 1 << place
	putSection(w.mu.page, place, name, Now())
	return place
}

// End ends what Begin has begun.
func (w *Writer) End(place int) {
	if place < 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.used &^= 1 << place
	endSection(w.mu.page, place)
}

// openLocked makes the page once, and reports whether there is one.
func (w *Writer) openLocked() bool {
	if !w.mu.opened {
		w.mu.opened = true
		if w.mu.page = create(); w.mu.page != nil {
			putHeader(w.mu.page, os.Getpid())
		}
	}
	return w.mu.page != nil
}

// Age is how long ago a time of a page was; 0 if it is not known.
func Age(since time.Duration) time.Duration {
	if since == 0 {
		return 0
	}
	return max(0, Now()-since)
}
