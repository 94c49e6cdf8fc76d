// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
)

// async starts a call and reports its result exactly once. The call counts as active when async returns, although there may
// be no session yet to send it on: a handler that has started it may return now, and then nothing else shows a shutdown
// that there is something to wait for.
func (a *Agent) async(ctx context.Context, to, fn string, args []any, report func(any, error)) {
	if len(a.cfg.calling) > 0 {
		next, end, err := a.cfg.intercept(ctx, a.cfg.calling, callInfo(to, fn, args, false))
		if err != nil {
			report(nil, err)
			return
		}
		finish := report
		ctx, report = next, func(v any, err error) { end(err); finish(v, err) }
	}
	if err := a.caller.Active.Enter(ctx); err != nil {
		report(nil, err)
		return
	}
	done := func(v any, err error) {
		report(v, err) // which may start another call
		a.caller.Active.Leave()
	}
	if to == a.name {
		if a.self == nil {
			done(nil, rpcsession.ErrClosed("call"))
			return
		}
		o := a.prepare(a.self, fn, args)
		o.Mode = "async"
		giveUp := o.Early(ctx)
		if !a.net.Go(func() { done(a.callSelf(ctx, o)) }) {
			giveUp()
			done(nil, rpcsession.ErrClosed("call"))
		}
		return
	}
	p, err := a.destination(ctx, to)
	if err != nil {
		done(nil, err)
		return
	}
	o := a.prepare(p, fn, args)
	o.Mode = "async"
	read := func(x rpcsession.Reply, err error) {
		var v any
		if err == nil {
			v, err = a.result(o.Func, p, x)
		}
		done(v, err)
	}
	a.post(ctx, o, func(x rpcsession.Reply, err error) {
		if err != nil || !a.refs.Early(x.Frame) || !a.net.Go(func() { a.awaitEarly(ctx, x); read(x, nil) }) {
			read(x, err)
		}
	})
}

// post sends a request that is counted as active, and calls done exactly once. The message is made before it returns.
func (a *Agent) post(ctx context.Context, o *rpcclient.Outgoing, done func(rpcsession.Reply, error)) {
	if c := o.Peer.Current(); c != nil {
		a.caller.Async(ctx, c, o, done)
		return
	}
	giveUp := o.Early(ctx)
	if !a.net.Go(func() {
		bounded, cancel := rpcclient.Until(ctx, a.caller.Deadline(ctx))
		c, err := o.Peer.Connect(bounded)
		cancel()
		if err != nil {
			giveUp()
			done(rpcsession.Reply{}, a.caller.Failed(o, err))
			return
		}
		a.caller.Async(ctx, c, o, done)
	}) {
		giveUp()
		done(rpcsession.Reply{}, rpcsession.ErrClosed("call"))
	}
}
