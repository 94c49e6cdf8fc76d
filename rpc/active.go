// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort/dist"
)

// activeCalls counts the calls of this worker that wait for an answer. A shutdown closes the gate for a moment to take
// the count.
type activeCalls struct {
	mu   sync.Mutex
	n    int
	gate chan struct{} // not nil while closed
	zero chan struct{} // closed when n falls to zero; made on demand
}

func (c *activeCalls) enter(ctx context.Context) error {
	c.mu.Lock()
	for c.gate != nil {
		gate := c.gate
		c.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			return dist.FromContext("rpc: call", ctx)
		}
		c.mu.Lock()
	}
	c.n++
	c.mu.Unlock()
	return nil
}

func (c *activeCalls) leave() {
	c.mu.Lock()
	c.n--
	if c.n == 0 && c.zero != nil {
		close(c.zero)
		c.zero = nil
	}
	c.mu.Unlock()
}

// idle waits until no call is under way.
func (c *activeCalls) idle(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.n == 0 {
			c.mu.Unlock()
			return nil
		}
		if c.zero == nil {
			c.zero = make(chan struct{})
		}
		zero := c.zero
		c.mu.Unlock()
		select {
		case <-zero:
		case <-ctx.Done():
			return dist.FromContext("rpc: shutdown", ctx)
		}
	}
}

// freeze closes the gate and returns the count.
func (c *activeCalls) freeze() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gate == nil {
		c.gate = make(chan struct{})
	}
	return c.n
}

func (c *activeCalls) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gate != nil {
		close(c.gate)
		c.gate = nil
	}
}
