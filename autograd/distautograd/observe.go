// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// WithHook sends events of backward passes to h: "autograd.backward" when a pass that this worker has begun begins and
// ends, and at every worker "autograd.recv" when gradients leave for the worker that a value came from, and
// "autograd.send" when those of a value that was sent arrive. They correspond to what torch.autograd.profiler shows of
// a pass: torch::distributed::autograd::backward, RecvRpcBackward and SendRpcBackward. A panic in h is logged by
// slog.Default, and the pass goes on.
func WithHook(h observe.Hook) Option { return option(func(e *Engine) { e.hook = h }) }

// note reports that gradients of a message arrive or leave.
func (e *Engine) note(kind observe.Kind, what label) {
	if e.hook != nil {
		e.hook.Emit(observe.Event{Kind: kind, Rank: cohort.Rank(e.self()), Peer: what.peer, Key: what.String()})
	}
}

// began reports that a pass begins, and returns what reports its end.
func (c *Context) began() (ended func(error)) {
	if c.e.hook == nil {
		return func(error) {}
	}
	x := observe.Event{Kind: "autograd.backward", Phase: observe.Begin, Time: time.Now(), Rank: cohort.Rank(c.e.self()),
		Key: strconv.FormatInt(int64(c.ID()), 10)}
	c.e.hook.Emit(x)
	return func(err error) {
		end := x
		end.Phase, end.Time, end.Err = observe.End, time.Now(), err
		end.Dur = end.Time.Sub(x.Time)
		c.e.hook.Emit(end)
	}
}

// String names the context by its id.
func (c *Context) String() string { return fmt.Sprintf("autograd context %d", int64(c.ID())) }

// String says how many contexts and passes there are.
func (e *Engine) String() string {
	s := e.Stats()
	return fmt.Sprintf("autograd engine (%d contexts, %d passes)", s.Contexts, s.Passes)
}
