// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcref"
)

// async starts a call and reports its result exactly once. The call counts as active when async returns, although there may
// be no session yet to send it on: a handler that has started it may return now, and then nothing else tells a shutdown
// that there is something to wait for.
func (a *Agent) async(ctx context.Context, to, fn string, args []any, report func(any, error)) {
	if err := a.calls.enter(ctx); err != nil {
		report(nil, err)
		return
	}
	done := func(v any, err error) {
		report(v, err) // which may start another call
		a.calls.leave()
	}
	if to == a.name {
		if a.self == nil {
			done(nil, rpclink.ErrClosed("call"))
			return
		}
		o := a.prepare(a.self, fn, args)
		o.mode = "async"
		giveUp := o.early(ctx)
		if !a.net.Own(func() { done(a.callSelf(ctx, o)) }) {
			giveUp()
			done(nil, rpclink.ErrClosed("call"))
		}
		return
	}
	p, err := a.destination(ctx, to)
	if err != nil {
		done(nil, err)
		return
	}
	read := func(x rpclink.Reply, err error) {
		var v any
		if err == nil {
			v, err = a.result(fn, p, x)
		}
		done(v, err)
	}
	o := a.prepare(p, fn, args)
	o.mode = "async"
	if c := p.Current(); c != nil {
		a.asyncOn(ctx, c, o, read)
		return
	}
	giveUp := o.early(ctx)
	if !a.net.Own(func() {
		bounded, cancel := contextUntil(ctx, a.deadline(ctx))
		c, err := p.Connect(bounded)
		cancel()
		if err != nil {
			giveUp()
			done(nil, a.failed(o, err))
			return
		}
		a.asyncOn(ctx, c, o, read)
	}) {
		giveUp()
		done(nil, rpclink.ErrClosed("call"))
	}
}

// asyncOn sends a request on a session and calls done exactly once, normally in the goroutine that reads the answer. The
// caller has counted it as active.
func (a *Agent) asyncOn(ctx context.Context, c *rpclink.Conn, o *outgoing, done func(rpclink.Reply, error)) {
	started := a.begin(o)
	finish := func(x rpclink.Reply, err error) {
		a.end(o, started, err)
		done(x, err)
	}
	deadline := a.deadline(ctx)
	m, wires, flags, err := o.make(ctx, c.Cohort())
	if err != nil {
		finish(rpclink.Reply{}, err)
		return
	}
	a.refs.FlushNow(o.peer, wires)
	w := &watch{}
	p := &rpclink.Pending{Fn: func(x rpclink.Reply) {
		w.stop()
		x.Due = deadline
		finish(a.received(o, x, wires))
	}}
	id, err := c.Begin(ctx, m, p, rpcref.HeaderForks(wires), flags, deadline)
	if err != nil {
		a.refs.Undecoded(o.peer, wires)
		finish(rpclink.Reply{}, a.failed(o, err))
		return
	}
	giveUp := func(err error) {
		if !c.Forget(id) {
			return
		}
		w.stop()
		c.Cancel(id)
		a.refs.Undelivered(o.peer, wires)
		finish(rpclink.Reply{}, a.failed(o, err))
	}
	w.start(ctx, deadline, giveUp, o.op, a.Timeout())
}

// watch ends a call when its time is over.
type watch struct {
	mu      sync.Mutex
	stopped bool
	timer   *time.Timer
	after   func() bool
}

func (w *watch) start(ctx context.Context, deadline time.Time, giveUp func(error), op string, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if ctx.Done() != nil {
		w.after = context.AfterFunc(ctx, func() { giveUp(dist.FromContext("rpc: "+op, ctx)) })
	}
	if _, has := ctx.Deadline(); !has && !deadline.IsZero() {
		w.timer = time.AfterFunc(time.Until(deadline), func() { giveUp(timedOut(op, limit)) })
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.after != nil {
		w.after()
	}
}
