// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
)

// reqContext is the context of a handler. Most handlers never look at it, so the real context behind it is made only when
// somebody does.
type reqContext struct {
	agent  *Agent
	base   context.Context //nolint:containedctx // what the real context is made of
	limit  time.Time
	holder *place

	mu      sync.Mutex
	inner   context.Context //nolint:containedctx // made on demand
	stop    context.CancelCauseFunc
	timer   context.CancelFunc
	ended   bool
	reason  error
	overdue *time.Timer // of a handler whose caller has gone
}

// overdueAfter is how long a handler may go on when its context has ended before its place is given to others.
const overdueAfter = 10 * time.Second

var _ context.Context = (*reqContext)(nil)

type agentKey struct{}

// AgentFrom returns the agent that runs the handler whose context ctx is or comes from, or nil. It corresponds to the
// process-wide agent that a PyTorch function finds.
func AgentFrom(ctx context.Context) *Agent {
	a, _ := ctx.Value(agentKey{}).(*Agent)
	return a
}

// begin says what the context is, when the request begins to run. It may have been cancelled before.
func (c *reqContext) begin(base context.Context, a *Agent, limit time.Time, holder *place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agent, c.base, c.limit, c.holder = a, base, limit, holder
}

// Deadline is the caller's.
func (c *reqContext) Deadline() (time.Time, bool) { return c.limit, !c.limit.IsZero() }

// Done makes the real context.
func (c *reqContext) Done() <-chan struct{} { return c.real().Done() }

// Err says whether the context has ended, without making the real one.
func (c *reqContext) Err() error {
	c.mu.Lock()
	inner, ended := c.inner, c.ended
	c.mu.Unlock()
	switch {
	case inner != nil:
		return inner.Err()
	case !c.limit.IsZero() && !time.Now().Before(c.limit), ended, c.base.Err() != nil:
		return c.real().Err()
	}
	return nil
}

// Value finds the handler's place; other keys are asked of the real context, which is how derived contexts attach.
func (c *reqContext) Value(key any) any {
	switch key.(type) {
	case placeKey:
		return c.holder
	case agentKey:
		return c.agent
	}
	return c.real().Value(key)
}

// waited returns why a request need not be run that had to wait for a place: its caller has gone meanwhile.
func (c *reqContext) waited() error {
	if c.Err() == nil {
		return nil
	}
	return dist.FromContext("rpc: request", c)
}

func (c *reqContext) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		return c.inner
	}
	c.inner, c.stop = context.WithCancelCause(c.base)
	if !c.limit.IsZero() {
		c.inner, c.timer = context.WithDeadline(c.inner, c.limit)
	}
	if c.ended {
		c.stop(c.reason)
	}
	return c.inner
}

// cancel ends the context with a cause.
func (c *reqContext) cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		if c.overdue != nil && errors.Is(cause, errHandlerDone) {
			c.overdue.Stop()
		}
		return
	}
	c.ended, c.reason = true, cause
	if holder := c.holder; holder != nil && !errors.Is(cause, errHandlerDone) {
		a := c.agent
		c.overdue = time.AfterFunc(overdueAfter, func() {
			if holder.abandon() {
				a.cfg.logger.Warn("a handler does not return although its caller has gone: its place is given to others", slog.String("worker", a.name))
			}
		})
	}
	if c.stop != nil {
		c.stop(cause)
	}
	if c.timer != nil {
		c.timer()
	}
}
