// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccall

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcref"
)

// Async sends a request on a session and calls done exactly once, normally in the goroutine that reads the answer. The
// caller has counted it as active.
func (k *Caller) Async(ctx context.Context, c *rpclink.Conn, o *Outgoing, done func(rpclink.Reply, error)) {
	started := k.Begin(ctx, o)
	finish := func(x rpclink.Reply, err error) {
		k.End(o, started, err)
		done(x, err)
	}
	deadline := k.Deadline(ctx)
	m, wires, flags, err := o.Make(ctx, c.Cohort())
	if err != nil {
		finish(rpclink.Reply{}, err)
		return
	}
	k.cfg.Refs.FlushNow(o.Peer, wires)
	w := &watch{}
	p := &rpclink.Pending{Runs: o.Runs, Fn: func(x rpclink.Reply) {
		w.stop()
		x.Due = deadline
		finish(k.received(o, x, wires))
	}}
	id, err := c.Begin(ctx, m, p, rpcref.HeaderForks(wires), flags, deadline)
	if err != nil {
		k.unsent(c, o, wires, err)
		finish(rpclink.Reply{}, k.Failed(o, err))
		return
	}
	giveUp := func(err error) {
		if !c.Forget(id) {
			return
		}
		w.stop()
		c.Cancel(id)
		k.cfg.Refs.Undelivered(o.Peer, wires)
		finish(rpclink.Reply{}, k.Failed(o, err))
	}
	w.start(ctx, deadline, giveUp, o.Op, k.cfg.Timeout())
}

// watch ends a call when its time is over.
type watch struct {
	mu struct {
		sync.Mutex
		stopped bool
		timer   *time.Timer
		after   func() bool
	}
}

func (w *watch) start(ctx context.Context, deadline time.Time, giveUp func(error), op string, limit time.Duration) {
	moment.At("rpc.call.watch")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.stopped {
		return
	}
	if ctx.Done() != nil {
		w.mu.after = context.AfterFunc(ctx, func() { giveUp(dist.FromContext(ctx, "rpc: "+op)) })
	}
	if _, has := ctx.Deadline(); !has && !deadline.IsZero() {
		w.mu.timer = time.AfterFunc(time.Until(deadline), func() { giveUp(timedOut(op, limit)) })
	}
}

func (w *watch) stop() {
	moment.At("rpc.call.unwatch")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.stopped = true
	if w.mu.timer != nil {
		w.mu.timer.Stop()
	}
	if w.mu.after != nil {
		w.mu.after()
	}
}
