// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package failpointtest

import "sync"

// tally counts what is under way. Unlike a sync.WaitGroup it may be waited for while it goes up from zero: goroutines that belong
// to no call hit points at any time.
type tally struct {
	mu struct {
		sync.Mutex
		n    int
		zero chan struct{} // closed when n is zero again
	}
}

func (t *tally) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.n++; t.mu.n == 1 {
		t.mu.zero = make(chan struct{})
	}
}

func (t *tally) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.n--; t.mu.n == 0 {
		close(t.mu.zero)
	}
}

// none is closed when nothing is under way, at that moment or a later one.
func (t *tally) none() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.zero == nil {
		t.mu.zero = make(chan struct{})
		close(t.mu.zero)
	}
	return t.mu.zero
}
