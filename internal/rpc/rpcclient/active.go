// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// activeCalls counts the calls of this worker that wait for an answer. A shutdown closes the gate for a moment to take
// the count.
type activeCalls struct {
	mu struct {
		sync.Mutex
		n    int
		gate chan struct{} // not nil while closed
		zero chan struct{} // closed when n falls to zero; made on demand
	}
}

// Enter counts a call, when the gate is open.
func (c *activeCalls) Enter(ctx context.Context) error {
	failpoint.At("rpc.active.enter")
	c.mu.Lock()
	for c.mu.gate != nil {
		gate := c.mu.gate
		c.mu.Unlock()
		failpoint.At("rpc.active.gate")
		select {
		case <-gate:
		case <-ctx.Done():
			return cohort.FromContext(ctx, "rpc: call")
		}
		failpoint.At("rpc.active.again")
		c.mu.Lock()
	}
	c.mu.n++
	c.mu.Unlock()
	return nil
}

// TryEnter is Enter that does not wait: it reports false when the gate is closed.
func (c *activeCalls) TryEnter() bool {
	failpoint.At("rpc.active.try")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.gate != nil {
		return false
	}
	c.mu.n++
	return true
}

// Leave counts it off.
func (c *activeCalls) Leave() {
	failpoint.At("rpc.active.leave")
	c.mu.Lock()
	c.mu.n--
	if c.mu.n == 0 && c.mu.zero != nil {
		close(c.mu.zero)
		c.mu.zero = nil
	}
	c.mu.Unlock()
}

// Count returns how many there are.
func (c *activeCalls) Count() int {
	failpoint.At("rpc.active.count")
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.n
}

// Idle waits until no call is under way.
func (c *activeCalls) Idle(ctx context.Context) error {
	for {
		failpoint.At("rpc.active.idle")
		c.mu.Lock()
		if c.mu.n == 0 {
			c.mu.Unlock()
			return nil
		}
		if c.mu.zero == nil {
			c.mu.zero = make(chan struct{})
		}
		zero := c.mu.zero
		c.mu.Unlock()
		failpoint.At("rpc.active.wait")
		select {
		case <-zero:
		case <-ctx.Done():
			return cohort.FromContext(ctx, "rpc: shutdown")
		}
	}
}

// Freeze closes the gate and returns the count.
func (c *activeCalls) Freeze() int {
	failpoint.At("rpc.active.freeze")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.gate == nil {
		c.mu.gate = make(chan struct{})
	}
	return c.mu.n
}

// Thaw opens the gate.
func (c *activeCalls) Thaw() {
	failpoint.At("rpc.active.thaw")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.gate != nil {
		close(c.mu.gate)
		c.mu.gate = nil
	}
}
