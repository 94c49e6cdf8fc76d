// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcslots

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Context is the context of a handler. Most handlers never use it, so the real context behind it is made only when
// one does.
type Context struct {
	owner  Owner
	base   context.Context //nolint:containedctx // what the real context is made of
	limit  time.Time
	holder *Slot

	mu struct {
		sync.Mutex
		inner   context.Context //nolint:containedctx // made on demand
		stop    context.CancelCauseFunc
		timer   context.CancelFunc
		ended   bool
		reason  error
		overdue *time.Timer // of a handler whose caller has given up
	}
}

// overdueAfter is how long a handler may run on after the end of its context before its slot is given to others.
const overdueAfter = 10 * time.Second

var _ context.Context = (*Context)(nil)

// Owner runs handlers.
type Owner interface {
	// Overdue is called when a handler does not return although its caller has given up, and its slot is given to others.
	Overdue()
}

// OwnerKey finds the [Owner] in the context of a handler.
type OwnerKey struct{}

// ErrDone is the cause of a handler's context when the handler has ended by itself.
var ErrDone = cohort.New("rpc: request", cohort.Canceled, "the handler has returned")

// Begin sets the context's parent and limit when the request begins to run. It may have been cancelled before.
func (c *Context) Begin(base context.Context, o Owner, limit time.Time, holder *Slot) {
	failpoint.At("rpc.slot.begin")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner, c.base, c.limit, c.holder = o, base, limit, holder
}

// Deadline is the caller's.
func (c *Context) Deadline() (time.Time, bool) { return c.limit, !c.limit.IsZero() }

// Done makes the real context.
func (c *Context) Done() <-chan struct{} { return c.real().Done() }

// Err returns why the context has ended, or nil, without making the real one.
func (c *Context) Err() error {
	c.mu.Lock()
	inner, ended := c.mu.inner, c.mu.ended
	c.mu.Unlock()
	switch {
	case inner != nil:
		return inner.Err()
	case !c.limit.IsZero() && !time.Now().Before(c.limit), ended, c.base.Err() != nil:
		return c.real().Err()
	}
	return nil
}

// Value finds the handler's slot; other keys are looked up in the real context, which is how derived contexts attach.
func (c *Context) Value(key any) any {
	switch key.(type) {
	case slotKey:
		return c.holder
	case OwnerKey:
		return c.owner
	}
	return c.real().Value(key)
}

// Cancelled reports whether Cancel was called.
func (c *Context) Cancelled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.ended
}

// Waited returns why a request need not be run that had to wait for a slot: its caller has given up meanwhile.
func (c *Context) Waited() error {
	if c.Err() == nil {
		return nil
	}
	return cohort.FromContext(c, "rpc: request")
}

func (c *Context) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.inner != nil {
		return c.mu.inner
	}
	inner, stop := context.WithCancelCause(c.base)
	c.mu.stop = stop
	if !c.limit.IsZero() {
		inner, c.mu.timer = context.WithDeadline(inner, c.limit)
	}
	c.mu.inner = inner //nolint:fatcontext // once
	if c.mu.ended {
		c.mu.stop(c.mu.reason)
	}
	return c.mu.inner
}

// Cancel ends the context with a cause.
func (c *Context) Cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		if c.mu.overdue != nil && errors.Is(cause, ErrDone) {
			c.mu.overdue.Stop()
		}
		return
	}
	c.mu.ended, c.mu.reason = true, cause
	if holder := c.holder; holder != nil && !errors.Is(cause, ErrDone) {
		owner := c.owner
		c.mu.overdue = time.AfterFunc(overdueAfter, func() {
			if holder.abandon() {
				owner.Overdue()
			}
		})
	}
	if c.mu.stop != nil {
		c.mu.stop(cause)
	}
	if c.mu.timer != nil {
		c.mu.timer()
	}
}
